"""The content of a run's directory, as the sections of the run's page and the answers to its requests."""
