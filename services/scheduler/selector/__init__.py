"""Chooses the parallelism that a stage should have, with the reason. Pure."""
