"""Replays a recorded trace through a policy, for operators: `earl replay`."""
