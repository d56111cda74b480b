"""vLLM as an engine; imported in its own environment only."""
