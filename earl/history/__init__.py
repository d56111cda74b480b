"""The run's history: what happened to every ticket and version, and whether that kept the run's promises."""
