"""Claim2Source: find the paper that a social media post means."""

__version__ = "0.1.0"
