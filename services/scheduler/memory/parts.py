"""The parts of a device's used memory, at the moment of a stage's peak. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from earl.errors import ConfigError

ITEM_BYTES = {"float32": 4, "bfloat16": 2}
WIDE_BYTES = ITEM_BYTES["float32"]
# Ids, positions, targets, packing and the losses' columns, of one row of a packed micro-batch.
ROW_BYTES = 160
# Share of a step's temporary memory that the allocator cannot use again at once.
MARGIN = 0.1
# earl.models.logprobs: CHUNK_BYTES, GPU_CHUNK_BYTES.
CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes of one rank of a stage, by what they are for, when it takes most.

    moment: which part of its work that is. weights: parameters, whatever copies of them there are, tables of
    positions. gradients: of parameters. optimizer: moments. kv: cached keys and values. activations: what
    layers keep for the backward pass and what the current one computes with. logits: as wide as the
    vocabulary. staging: versions of the weights on their way, read or published. margin: what the allocator
    keeps beyond what is in use. base: the process itself and its libraries.
    """

    moment: str
    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    kv: int = 0
    activations: int = 0
    logits: int = 0
    staging: int = 0
    margin: int = 0
    base: int = 0

    @property
    def total_bytes(self) -> int:
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Bytes by name, in the order above."""
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name != "moment"}

    def with_base(self, base_bytes: int) -> MemoryParts:
        """Returns the parts with `base_bytes` for what the process itself takes."""
        return replace(self, base=base_bytes)

    def fraction(self, device_bytes: int) -> float:
        """The share of a device with so many bytes: above 1 it does not fit. Raises ConfigError."""
        if device_bytes <= 0:
            raise ConfigError(f"a device of {device_bytes} bytes", "give the memory of one device, in bytes")
        return self.total_bytes / device_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchRows:
    """A packed micro-batch as one rank sees it.

    rows: packed rows; trained_rows: whose log-probs are wanted; padded: rows that attention sees. moved: rows
    are gathered for attention and scattered after it (sequences of unlike length or with shared beginnings).
    """

    rows: int
    trained_rows: int
    padded: int
    moved: bool


def largest(moments: Iterable[MemoryParts]) -> MemoryParts:
    """The moment that takes most; of equals the first."""
    return max(moments, key=lambda moment: moment.total_bytes)


def together(moments: Iterable[MemoryParts]) -> MemoryParts:
    """The moment that takes most, in a heap that gives the space of one kind to no other, as glibc's: each
    part's own most counts, wherever it is. The difference is the margin's."""
    moments = list(moments)
    most = largest(moments)
    whole = sum(max(moment.parts()[name] for moment in moments) for name in most.parts())
    return replace(most, margin=most.margin + whole - most.total_bytes)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def chunk_elements(vocab: int, rows: int, device: str) -> int:
    """Logits that exist at once (earl.models.logprobs). device: "cpu" or "cuda"."""
    return vocab * min(rows, max(1, CHUNK_BYTES[device] // (WIDE_BYTES * vocab)))
