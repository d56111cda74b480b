"""The reward model: a frozen classifier that scores trajectories, served as the reference stage is."""
