"""Programs that train: the package `claim2source.train`."""
