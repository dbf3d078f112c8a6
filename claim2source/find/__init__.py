"""Answer posts by the papers of an index."""
