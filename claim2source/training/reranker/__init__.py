"""Training of re-rankers: cross-encoders, generative yes/no models."""
