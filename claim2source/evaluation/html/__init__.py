"""Draw a comparison as one HTML page."""
