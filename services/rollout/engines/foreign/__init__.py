"""Shared code of engines of other projects: the engine behind the contract, and its loop."""
