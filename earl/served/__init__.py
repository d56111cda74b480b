"""The client of a model that another server serves, through vLLM's OpenAI-compatible completions API."""
