"""Verify what a search has found: a language model chooses among the first sources."""
