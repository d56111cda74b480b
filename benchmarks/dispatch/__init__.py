"""The cost of bringing tensors from their producers to their consumers, for each way of doing it."""
