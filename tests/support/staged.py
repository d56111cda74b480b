"""A version of weights that a rank's stager has staged, made of arrays instead of a trainer's arena."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from earl.errors import VersionGone
from services.rollout.engines.contract.weight_staging import StagedCopy
from services.rollout.engines.torch.ranks import EngineRank


class StagedArrays:
    """Parameters in one memory, end to end. overwritten: their owner wrote over them meanwhile."""

    def __init__(self, arrays: Mapping[str, np.ndarray], *, overwritten: bool = False) -> None:
        self.memory = np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays.values()])
        self.memory.flags.writeable = False
        self.dtypes = {name: str(array.dtype) for name, array in arrays.items()}
        self.size_bytes = len(self.memory)
        self.overwritten = overwritten
        self._sizes = {name: array.nbytes for name, array in arrays.items()}

    def reading(self, work: Callable[..., None], *arguments: Any) -> None:
        """Calls work, like MappedArena.reading: memory that nobody truncates needs nothing else."""
        work(*arguments)

    def copies(self) -> Iterator[tuple[StagedArrays, Iterator[StagedCopy]]]:
        copies: list[StagedCopy] = []
        start = 0
        for name, size_bytes in self._sizes.items():
            copies.append(StagedCopy(name, start, 0, 1, size_bytes, 0, 0))
            start += size_bytes
        yield self, iter(copies)


class ArrayStager:
    """A stager that has every version staged. versions: by number."""

    def __init__(self, versions: Mapping[int, StagedArrays]) -> None:
        self._versions = versions

    def take(self, version: int) -> StagedArrays:
        return self._versions[version]

    def applied(self, staged: StagedArrays, seconds: float) -> None:
        if staged.overwritten:
            raise VersionGone("it was overwritten", "take the newer version")


def give_stager(rank: EngineRank, stager: object) -> None:
    """Makes a rank that has no data plane apply what this stager has."""
    rank.stager = stager  # type: ignore[assignment]
    rank.data = SimpleNamespace(transfers=[])  # type: ignore[assignment]
