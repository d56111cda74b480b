"""EARL: reinforcement learning for LLM agents whose context keeps growing (arXiv 2510.05943)."""

import os

# gRPC reads these when it is first loaded, which is after this, wherever it is imported.
# Its core writes its own lines to stderr for what is also raised.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# Its fork handlers can crash a child between fork and exec (uvloop and preexec_fn start processes that
# way); every process here is spawned and none uses gRPC across a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = "0.1.0"
