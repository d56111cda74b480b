"""Rollout: plays tickets with the policy and keeps the trajectories for the trainer."""
