"""The reference stage: the policy that reinforcement learning started from, in its own parallelism.

The teacher (services/trainer/teacher) is the same stage with another policy."""
