"""How results come to stand in benchmarks/results/: append-only, each with its commit, machine and load."""
