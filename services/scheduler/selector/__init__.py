"""Which parallelism a stage should have, and why. Pure."""
