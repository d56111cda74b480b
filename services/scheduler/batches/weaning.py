"""The weight of the teacher in a batch: QDagger's rule of weaning, for a policy gradient. Pure.

    weight = 1[t < t0] · max(1 − G_policy / G_teacher, 0)    (QDagger: Reincarnating RL, arXiv 2206.01626)

t is the version that the batch trains, t0 is teacher.until, and G is a mean return, counted from the least
possible reward on: without that shift the quotient of two returns would mean nothing where they may be
negative. G_policy is that of the batch's own trajectories, so the weight follows from the batch alone.
Without teacher.wean the second factor is 1.

Promise: once a batch has the weight 0, all later ones have: the teacher's process may end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from earl.config.run import RunConfig


@dataclass(frozen=True, slots=True)
class WeaningRule:
    """The end of a teacher, and its weight until then.

    until: the first version that is trained without it, 0 for none. score: the teacher's mean reward; None
    if rewards do not change its weight. least: the least reward of an episode.
    """

    until: int = 0
    score: float | None = None
    least: float = 0.0

    @classmethod
    def of(cls, config: RunConfig) -> Self | None:
        """The rule of a run; None if it has no teacher."""
        teacher = config.teacher
        if not teacher.given:
            return None
        if not teacher.wean:
            return cls(teacher.until)
        return cls(teacher.until, teacher.measured_score, min(entry.rewards[0] for entry in config.mixture))

    def weight(self, version: int, rewards: Sequence[float]) -> float:
        """The weight of the teacher, 0..1, in a batch of training.

        version: that the batch trains. rewards: of its trajectories, at least one where score is given.
        """
        if self.over(version):
            return 0.0
        if self.score is None:
            return 1.0
        policy = sum(rewards) / len(rewards) - self.least
        return min(1.0, max(0.0, 1.0 - policy / (self.score - self.least)))

    def over(self, version: int) -> bool:
        """Returns whether the teacher counts in no batch that trains this version, whatever its rewards."""
        return 0 < self.until <= version

    def ends(self, version: int, weight: float) -> bool:
        """Returns whether the teacher has counted for the last time, now that a batch of training is
        committed.

        version: that the batch trained. weight: of the teacher in it.
        """
        return weight <= 0.0 or self.over(version + 1)
