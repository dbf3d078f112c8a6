"""Read and write runs, judgements and submissions, the store, and W&B."""
