"""Programs that evaluate; installed as `claim2source.eval`."""
