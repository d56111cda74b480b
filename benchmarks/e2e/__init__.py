"""EARL against TRL's GRPOTrainer: wall time to the same reward."""
