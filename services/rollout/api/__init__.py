"""What others ask of a rollout worker: the servicer of earl.v1.RolloutService."""
