"""Predicted against measured peaks of memory: `earl bench memory-model`."""
