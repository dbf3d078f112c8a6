"""Run systems, choose settings on val, and report the results."""
