"""The ranks of a trainer as dp replicas of cp x tp ranks: who this rank is, and whom it computes with.

    rank = (replica * cp + context) * tp + tensor                                    dp2·tp2·cp2 of 8 ranks
        tp        slices of every block                                              0 1 | 2 3 | 4 5 | 6 7
        cp        rows of the same packed sequences                                  0 2 | 1 3 | 4 6 | 5 7
        replica   the same batch items; each counts its own trained tokens           0 1 2 3   | 4 5 6 7
        blocks    FSDP2's mesh of what tp leaves of a block                          0 2 4 6   | 1 3 5 7
        all       FSDP2's mesh of what no block has: embedding, last norm, lm_head   0 1 2 3 4 5 6 7

A mesh takes its process groups from the group of all ranks and gives them back when it is closed: ranks that
return to a parallelism compute with the groups that they had (subgroups.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from earl.errors import IllegalParallelism
from earl.models.parallel import ContextParallel, TensorParallel
from earl.models.spec import ModelSpec
from earl.models.tp import check_parallelism, legal_parallelisms
from earl.parallelism import Parallelism
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.subgroups import Rows


class RankMesh:
    """A group's ranks in one parallelism. Making and closing it are collectives, in one order.

    replica: which of the dp this rank belongs to. tensor, context: its places within. blocks, everyone: the
    meshes that FSDP2 shards a block's parameters over, and all others.
    """

    def __init__(self, group: Group, parallelism: Parallelism, spec: ModelSpec) -> None:
        """Raises IllegalParallelism where it needs another number of ranks, or the model forbids it."""
        check_rank_mesh(parallelism, group.size, spec)
        self.group, self.parallelism = group, parallelism
        dp, tp, cp = parallelism.dp, parallelism.tp, parallelism.cp
        ranks = torch.arange(group.size).view(dp, cp, tp)
        self.replica, place = divmod(group.rank, cp * tp)
        context, tensor = divmod(place, tp)
        # Each time that it was taken, to be given back as often.
        self._taken: list[Rows] = []
        shared = max(1, tp // spec.kv_heads)
        whole = self._join(ranks.reshape(-1, tp)) if tp > 1 else None
        part = self._join(ranks.reshape(-1, shared)) if shared > 1 else None
        self.tensor = TensorParallel(tensor, tp, whole, part, shared)
        across = ranks.transpose(1, 2).reshape(-1, cp)
        self.context = ContextParallel(context, cp, self._join(across) if cp > 1 else None)
        self._of_replica = self._join(ranks.reshape(dp, -1)) if cp * tp > 1 else None
        self.everyone: DeviceMesh = group.mesh
        self.blocks: DeviceMesh = group.mesh
        if tp > 1:
            # This rank alone, if there is nothing else to shard over.
            self.blocks = group.subgroups.take_mesh(self._rows(ranks.reshape(-1, tp).T))

    @property
    def data_ranks(self) -> int:
        """Returns how many parts a batch has."""
        return self.parallelism.dp

    @property
    def counts(self) -> bool:
        """Returns whether this rank counts for its replica: the batch's items and their tokens."""
        return self.tensor.rank == 0 and self.context.rank == 0

    def sum_in_replica(self, values: torch.Tensor) -> torch.Tensor:
        """`values` (on the CPU) becomes the sum over the ranks that have the same items; returned."""
        if self.tensor.size * self.context.size > 1:
            dist.all_reduce(values, group=self._of_replica)
        return values

    def close(self) -> None:
        """Gives the process groups back; what was made with them must not be used any more. Idempotent."""
        while self._taken:
            self.group.subgroups.give(self._taken.pop())

    def _join(self, rows: torch.Tensor) -> Any:
        """The process group of the row that has this rank."""
        return self.group.subgroups.take(self._rows(rows))

    def _rows(self, ranks: torch.Tensor) -> Rows:
        """ranks int64[rows, ranks of a row], about to be taken."""
        self._taken.append(tuple(map(tuple, ranks.tolist())))
        return self._taken[-1]


def check_rank_mesh(parallelism: Parallelism, ranks: int, spec: ModelSpec) -> None:
    """Raises IllegalParallelism, naming what is possible, for what a trainer of so many ranks cannot be."""
    if parallelism.pp > 1 or parallelism.devices != ranks:
        raise IllegalParallelism(
            f"{parallelism} of {parallelism.devices} ranks (pp {parallelism.pp}) is no parallelism of a "
            f"trainer of {ranks} ranks",
            f"use one of {', '.join(map(str, legal_parallelisms(spec, ranks)))}",
        )
    check_parallelism(spec, parallelism.tp, parallelism.cp)
