"""Scoring runs: metrics, significance, tables."""
