"""Compute metrics by claim, with tests and intervals by gold paper."""
