"""What `earl bench NAME` runs; results lie in benchmarks/results/."""
