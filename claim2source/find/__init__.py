"""Find the papers of an index that posts mean."""
