"""torch's settings for CUDA cards whose batches have ever other lengths: memory and attention kernels.

Memory in segments that grow: with segments of fixed sizes, memory that activations had serves no logits and
no gathered parameters, and each of a step's kinds of tensor keeps its own most. On an H200 trainer and
reference took up to half as much again as the memory model predicts of what is in use; in segments that grow,
up to a fifth.

No attention by cuDNN, which torch prefers on Hopper and newer: it builds a plan for every shape that the
process has not had yet, and here nearly every step has one.
"""

from __future__ import annotations

import os

import torch

# torch reads the first from 2.9 on, and both say the same.
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def settle_card() -> None:
    """Sets up torch's allocator, unless the environment does, and its choice of attention kernels.

    To be called before CUDA is used; without a card it changes nothing that is computed.
    """
    if not any(os.environ.get(name) for name in _VARIABLES):
        os.environ[_VARIABLES[0]] = "expandable_segments:True"
    torch.backends.cuda.enable_cudnn_sdp(False)
