"""`[replay]`: trajectories that are trained on again."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from earl.config.base import ConfigSection


class ReplayConfig(ConfigSection):
    """Trained groups that later batches train on again (docs/algorithms.md)."""

    # Times that a group may be trained again; 0: never.
    #
    # Set it to 1 or 2 where episodes cost more than training: a policy then learns from fewer of them.
    reuse: int = Field(default=0, ge=0, le=16)
    # Groups of each batch that are trained again, beside scheduler.batch_groups new ones; fewer while there
    # are not as many. 0: reuse x scheduler.batch_groups, so that each group is used as often as it may be.
    #
    # Lower it to train each batch in less time; some groups are then never used again.
    groups: int = Field(default=0, ge=0)
    # Versions that the oldest token of a group may be behind the weights that are trained on it again.
    #
    # Lower it if kl_behaviour or clip_fraction rise; raise it where each step changes the policy little.
    max_age: int = Field(default=4, ge=1, le=64)
    # Groups that are kept to be trained again; beyond it the oldest is forgotten. 0: max_age x
    # scheduler.batch_groups.
    #
    # Lower it where the run's disk is small: a kept token takes 9 bytes, and 4 more each with a reference
    # stage and with trainer.turn_rewards.
    capacity: int = Field(default=0, ge=0)
    # "freshest": the groups that were trained last are trained again first. "fifo": those that were trained
    # first.
    #
    # Set "fifo" so that groups are used evenly where more are kept than a batch takes.
    order: Literal["freshest", "fifo"] = "freshest"

    def batch_part(self, batch_groups: int) -> int:
        """The most groups of a batch that are trained again. batch_groups: new ones of a batch."""
        return (self.groups or self.reuse * batch_groups) if self.reuse else 0

    def kept_groups(self, batch_groups: int) -> int:
        """The most groups that are kept. batch_groups: new ones of a batch."""
        return (self.capacity or self.max_age * batch_groups) if self.reuse else 0
