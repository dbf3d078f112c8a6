"""Hold the published tables and set our numbers beside them."""
