"""Describe systems as trees, choose their settings on val, and run the systems."""
