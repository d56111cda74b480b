"""A rollout worker: leases, episodes, reports, weights, heartbeats."""
