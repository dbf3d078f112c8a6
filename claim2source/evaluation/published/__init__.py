"""Published tables and set our numbers beside them."""
