"""EARL: reinforcement learning for LLM agents whose context keeps growing (arXiv 2510.05943)."""

__version__ = "0.1.0"
