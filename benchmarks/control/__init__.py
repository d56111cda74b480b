"""`earl bench control`: the scheduler under a thousand simulated workers."""
