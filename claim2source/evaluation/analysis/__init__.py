"""Explain results: language errors and analysis of variance."""
