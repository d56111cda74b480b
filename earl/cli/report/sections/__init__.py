"""What a run's directory says, as the sections of the run's page and the answers to its requests."""
