"""Arenas that CUDA knows: a copy from a GPU goes straight into registered memory, and returns at once."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

log = logging.getLogger(__name__)


class PinnedMemory:
    """Memory of arenas, registered with CUDA while this rank copies into it. Does nothing on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._registered: set[int] = set()

    def pin(self, memory: np.ndarray) -> None:
        """Registers uint8[N], once. Where CUDA refuses, copies go through a buffer of its own, as before."""
        address = memory.__array_interface__["data"][0]
        if not self._on_gpu or address in self._registered:
            return
        error = int(_runtime().cudaHostRegister(address, memory.nbytes, 0))
        if error:
            log.warning("CUDA does not register %d bytes of an arena: error %d", memory.nbytes, error)
            return
        self._registered.add(address)

    def unpin(self, memory: np.ndarray) -> None:
        """Ends the registration, before the memory is given back."""
        address = memory.__array_interface__["data"][0]
        if address in self._registered:
            self._registered.remove(address)
            _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    """CUDA's runtime, of which torch's stubs know nothing."""
    return torch.cuda.cudart()
