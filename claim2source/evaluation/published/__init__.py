"""Published tables, compared with our numbers."""
