"""Define the records, runs, configs and errors that everything else is made of."""
