"""The ranks of a frozen policy's stage as dp replicas of tp ranks each: rank = replica * tp + slice."""

from __future__ import annotations

from dataclasses import dataclass

from earl.errors import ConfigError
from earl.models.parallel import TensorParallel
from earl.parallelism import Parallelism
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.subgroups import Rows


@dataclass(frozen=True, slots=True)
class ReferenceMesh:
    """This rank's place among dp replicas of tp ranks.

    replica: which of the dp. tensor: its place among the tp ranks that share a model. rows: the ranks of each
    replica; none where each rank is one.
    """

    group: Group
    dp: int
    replica: int
    tensor: TensorParallel
    rows: Rows = ()

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(self.dp, self.tensor.size)

    def close(self) -> None:
        """Gives the replica's process group back. A collective."""
        if self.rows:
            self.group.subgroups.give(self.rows)


def make_reference_mesh(group: Group, dp: int, tp: int) -> ReferenceMesh:
    """Takes the process groups of dp replicas of tp ranks. A collective. Raises ConfigError for another
    number of ranks."""
    if group.size != dp * tp:
        raise ConfigError(
            f"the stage has {group.size} processes, its dp x tp = {dp} x {tp}",
            "start `python -m services.trainer.reference` or its like, which starts as many as it needs",
        )
    replica, slice_ = divmod(group.rank, tp)
    if tp == 1:
        return ReferenceMesh(group, dp, replica, TensorParallel())
    rows = tuple(tuple(range(first, first + tp)) for first in range(0, dp * tp, tp))
    return ReferenceMesh(group, dp, replica, TensorParallel(slice_, tp, group.subgroups.take(rows)), rows)
