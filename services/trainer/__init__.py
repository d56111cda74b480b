"""The trainer: ranks that read their slices, take optimizer steps, and publish what they learned."""
