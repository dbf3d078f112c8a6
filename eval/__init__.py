"""Programs that evaluate: the package `claim2source.eval`."""
