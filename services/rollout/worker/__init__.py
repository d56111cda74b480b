"""A rollout worker: leases, the agent that plays them, reports, weights, heartbeats."""
