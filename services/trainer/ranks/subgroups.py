"""Process groups of some of a group's ranks, kept when a parallelism ends for when the ranks take it again.

    take ─► in use ─ give ─► kept ─┬─ take: in use again, as it was
      │                            └─ more than the bound are kept: the one unused for longest is ended
      └─ never taken before: every rank makes every row's group

Making a group connects its ranks and starts threads; that was a large part of a switch's stall.

Promise: ranks that take and give in the same order make, keep and end the same groups in the same order.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

# Groups of ranks of equal size, (0, 1), (2, 3): every rank of the whole is in one of them.
Rows = tuple[tuple[int, ...], ...]

# Divisions that are kept though nobody uses them, by the ranks' device: those of three or four parallelisms.
# On a GPU a group that carried tensors holds device memory of its own.
KEPT = {"cpu": 16, "cuda": 4}
_number = count()


@dataclass(slots=True)
class _Division:
    """rows as groups. process_group: of this rank's row. mesh: over the same ranks, once it was taken."""

    process_group: Any
    users: int = 0
    mesh: DeviceMesh | None = None


class Subgroups:
    """The groups of one rank among `size`. device: the kind of device that its tensors are on."""

    def __init__(self, rank: int, size: int, device: str, kept: int | None = None) -> None:
        """kept: the most divisions that are kept unused; None: what KEPT has for the device."""
        self._rank, self._size, self._device = rank, size, device
        self._most = KEPT[device] if kept is None else kept
        # In the order in which they were last used.
        self._divisions: dict[tuple[Rows, float], _Division] = {}

    def take(self, rows: Rows, timeout_s: float = 0.0) -> Any:
        """The process group of this rank's row, until `give`. A collective of all ranks.

        timeout_s: of its collectives; 0: that of the whole group, which stands for a row of all ranks then.
        """
        return self._taken(rows, timeout_s).process_group

    def take_mesh(self, rows: Rows) -> DeviceMesh:
        """A mesh of one dimension over this rank's row, until `give`; the same each time. A collective."""
        division = self._taken(rows, 0.0)
        if division.mesh is None:
            # torch finds what it keeps for a mesh by ranks and names: a later mesh, with groups of its own,
            # is another.
            names = (f"fsdp{next(_number)}",)
            division.mesh = DeviceMesh.from_group(division.process_group, self._device, mesh_dim_names=names)
        return division.mesh

    def give(self, rows: Rows, timeout_s: float = 0.0) -> None:
        """Ends one use of a division; who had it uses its groups no more. Every rank does so."""
        division = self._divisions.pop((rows, timeout_s))
        division.users -= 1
        self._divisions[rows, timeout_s] = division
        unused = [key for key, division in self._divisions.items() if not division.users]
        ended = [self._divisions.pop(key) for key in unused[: max(0, len(unused) - self._most)]]
        for division in ended:
            if division.process_group is not dist.group.WORLD:
                dist.destroy_process_group(division.process_group)
        if ended:
            forget_meshes()

    def forget(self) -> None:
        """Drops all divisions, whose groups are ended with the whole group."""
        self._divisions.clear()

    def _taken(self, rows: Rows, timeout_s: float) -> _Division:
        division = self._divisions.pop((rows, timeout_s), None) or self._make(rows, timeout_s)
        division.users += 1
        self._divisions[rows, timeout_s] = division
        return division

    def _make(self, rows: Rows, timeout_s: float) -> _Division:
        if not timeout_s and len(rows) == 1:
            return _Division(dist.group.WORLD)
        timeout = timedelta(seconds=timeout_s) if timeout_s else None
        # Every rank takes part in making every group.
        made = {row: dist.new_group(list(row), timeout=timeout) for row in rows}
        return next(_Division(group) for row, group in made.items() if self._rank in row)


def forget_meshes() -> None:
    """Clears what DTensor keeps of meshes that are closed, on the thread that computes.

    Its caches hold their process groups, with gloo's threads. A process that another thread forks (uvloop
    does, to start one) drops this thread's caches, and would crash in joining threads that it does not have.
    """
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import debug

        debug._clear_sharding_prop_cache()
