"""The reference stage: the policy that reinforcement learning started from, in its own parallelism."""
