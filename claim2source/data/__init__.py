"""Read, write, store, split and prepare data: claims, papers, runs, submissions."""
