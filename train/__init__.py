"""Programs that train; installed as `claim2source.train`."""
