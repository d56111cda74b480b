"""What is known of throughput and memory by parallelism, context length and concurrency."""
