"""EARL's own engine: scheduler, KV cache, forward pass, ranks."""
