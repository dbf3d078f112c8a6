"""Compute metrics by claim, and test and bound them by gold paper."""
