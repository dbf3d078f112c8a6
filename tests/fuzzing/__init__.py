"""Fuzz the programs: valid inputs, ways to spoil them, and what must hold whatever is spoilt."""
