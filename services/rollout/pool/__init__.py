"""The engines of one worker: routing of turns, restarts, weights, switches of parallelism."""
