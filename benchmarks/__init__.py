"""The benchmarks that `earl bench NAME` runs; results lie in benchmarks/results/."""
