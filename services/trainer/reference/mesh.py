"""Where a rank of the stage stands: dp replicas of tp ranks each, rank = replica * tp + slice."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from earl.errors import ConfigError
from earl.models.parallel import TensorParallel
from earl.parallelism import Parallelism
from services.trainer.ranks.process_group import Group


@dataclass(frozen=True, slots=True)
class ReferenceMesh:
    """replica: which of the dp. tensor: this rank's place among the tp that share a model."""

    group: Group
    dp: int
    replica: int
    tensor: TensorParallel

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(self.dp, self.tensor.size)

    def close(self) -> None:
        """End the process group that the place was taken with. A collective."""
        if self.tensor.group is not None:
            dist.destroy_process_group(self.tensor.group)


def make_reference_mesh(group: Group, dp: int, tp: int) -> ReferenceMesh:
    """A collective. Raises ConfigError unless the group has dp * tp ranks."""
    if group.size != dp * tp:
        raise ConfigError(
            f"the reference stage has {group.size} processes, reference.dp x tp = {dp} x {tp}",
            "start it as `python -m services.trainer.reference`, which starts as many as it needs",
        )
    replica, slice_ = divmod(group.rank, tp)
    if tp == 1:
        return ReferenceMesh(group, dp, replica, TensorParallel())
    # Every rank takes part in making every group.
    groups = [dist.new_group(list(range(first, first + tp))) for first in range(0, dp * tp, tp)]
    return ReferenceMesh(group, dp, replica, TensorParallel(slice_, tp, groups[replica]))
