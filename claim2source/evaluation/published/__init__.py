"""Published tables and set our numbers next to them."""
