"""Writes results into benchmarks/results/: append-only, each with its commit, machine and load."""
