"""The calls to a rollout worker: the servicer of earl.v1.RolloutService."""
