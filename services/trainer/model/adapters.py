"""The adapters that a policy trains, and of which weights: recorded in a checkpoint of adapters alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import xxhash

from earl.models.lora import LoraSpec

_HASH_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class AdapterEntry:
    """The tensors are adapters (earl.models.lora) of the model whose files have the hash `base`."""

    lora: LoraSpec
    base: str


def hash_of(*paths: Path) -> str:
    """128-bit xxh3 of the files' bytes, one after the other, hexadecimal."""
    digest = xxhash.xxh3_128()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_HASH_BYTES):
                digest.update(block)
    return digest.hexdigest()
