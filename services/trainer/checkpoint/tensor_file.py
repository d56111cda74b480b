"""One file of tensors in safetensors' format, hashed while it is written: nothing is read again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
import xxhash

from services.trainer.step.state_offload import memory_at

# How much is written and hashed in turn: it is still in the processor's caches.
_CHUNK_BYTES = 4 << 20
_ALIGNMENT_BYTES = 8


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[str, int, str]:
    """Writes float32 tensors, on whichever device, to a new file, and returns once it is on the disk.

    Returns its name, its size and the 128-bit xxh3 of its bytes, hexadecimal. Raises OSError.
    """
    header: dict[str, object] = {}
    size_bytes = 0
    for name, tensor in tensors.items():
        assert tensor.dtype == torch.float32, name
        stop = size_bytes + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [size_bytes, stop]}
        size_bytes = stop
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT_BYTES)
    digest = xxhash.xxh3_128()
    with path.open("wb") as file:

        def write(data: bytes | memoryview) -> None:
            for start in range(0, len(data), _CHUNK_BYTES):
                digest.update(data[start : start + _CHUNK_BYTES])
                file.write(data[start : start + _CHUNK_BYTES])

        write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            flat = tensor.detach().to("cpu").contiguous().reshape(-1)
            write(memory_at(flat.data_ptr(), flat.numel() * flat.element_size()))
        file.flush()
        os.fsync(file.fileno())
        return path.name, file.tell(), digest.hexdigest()
