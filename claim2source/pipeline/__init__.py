"""Run systems, choose settings on val, and report what came out."""
