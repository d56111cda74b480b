"""The HTML report of a run: one file that needs nothing else, made from what the run's directory holds."""
