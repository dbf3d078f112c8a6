"""Turn trained checkpoints into other models: merged, or between base and tuned."""
