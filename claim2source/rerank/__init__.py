"""Re-rank what a first stage found: each module is one re-ranker that a system's YAML names."""
