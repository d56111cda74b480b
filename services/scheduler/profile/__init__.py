"""Profiles: throughput and memory by parallelism, context length and concurrency."""
