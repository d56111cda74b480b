"""Runs algorithms on the demo's environment: what each learns, and the same weights in each placement."""
