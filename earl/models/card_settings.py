"""CUDA's memory in segments that grow, in place of ever more segments of fixed sizes.

With fixed ones, memory that activations had serves no logits and no gathered parameters: each of a step's
kinds of tensor keeps its own most. On an H200 trainer and reference took up to half as much again as the
memory model predicts of what is in use; in segments that grow, up to a fifth.
"""

from __future__ import annotations

import os

# torch reads the first from 2.9 on, and both say the same.
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def use_growing_segments() -> None:
    """Sets up torch's allocator, unless the environment does. To be called before CUDA is used."""
    if not any(os.environ.get(name) for name in _VARIABLES):
        os.environ[_VARIABLES[0]] = "expandable_segments:True"
