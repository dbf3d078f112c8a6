"""Re-rank, verify or judge what a search found: each stage is one dataclass that a YAML names."""
