"""Engines: they turn token ids into sampled token ids, each in processes of its own."""
