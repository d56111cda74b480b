"""The division of one pool of devices between rollout and trainer. Pure.

    a committed step ─► device-seconds of rollout and of the trainer for a batch ─► those to expect when
    devices have moved ─► seconds of a step in every division ─► is another quicker? ─► what staying has lost
    in the steps in a row > what a move costs ─► move

Both stages work at once, so a step takes as long as the slower of the two: W_r / E or W_t / R, with W the
device-seconds of a batch and E + R devices in the pool. The threshold is the rule of switch_threshold.py, for
renting or buying of which the end is not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from services.scheduler.selector.switch_threshold import ERROR
from services.scheduler.selector.work_trend import STEPS, expected

# Devices of rollout and of the trainer.
Split = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SplitWork:
    """Device-seconds of a batch, above 0: its episodes in rollout, its training in the trainer."""

    rollout_s: float
    trainer_s: float


@dataclass(frozen=True, slots=True)
class SplitVerdict:
    """A decision for a step. here: the division in use; best: the quickest one. moves: whether to go there.

    measured: in the last step; work: expected of the steps that the decision is for. candidates: seconds of a
    step in every division. steps: for how many in a row the best has been the quicker; lost_s: in those by
    staying; threshold_s: what that must exceed.
    """

    here: Split
    best: Split
    measured: SplitWork
    work: SplitWork
    candidates: dict[Split, float]
    moves: bool = False
    steps: int = 0
    lost_s: float = 0.0
    threshold_s: float = 0.0

    @property
    def sentence(self) -> str:
        """The decision with its reason."""
        here, best = (f"rollout {rollout}, trainer {trainer}" for rollout, trainer in (self.here, self.best))
        if self.best == self.here:
            return f"stays with {here}: no other division of the devices is predicted to be quicker"
        saving_s = self.candidates[self.here] - self.candidates[self.best]
        compared = f"{self.lost_s:.2f} s lost in {self.steps} steps, {saving_s:.2f} s of the next"
        if self.moves:
            return f"goes to {best}: {compared}, more than the {self.threshold_s:.2f} s of a move"
        return (
            f"stays with {here}: {best} is quicker, but {compared}; a move must save {self.threshold_s:.2f} s"
        )


class SplitPolicy:
    """Decides after every step. splits: the divisions that the stages can have."""

    def __init__(self, splits: Sequence[Split]) -> None:
        self._splits = tuple(splits)
        # (step, work) of those that were measured.
        self._works: deque[tuple[int, SplitWork]] = deque(maxlen=STEPS)
        # For how many steps in a row a division has been quicker than the present one, and what those lost.
        self._better: dict[Split, tuple[int, float]] = {}

    def begin(self) -> None:
        """Another division is in use: what was lost by the former one no longer counts."""
        self._better = {}

    def decide(self, step: int, here: Split, work: SplitWork, cost_s: float) -> SplitVerdict:
        """Decides after a step in the division `here` that took so much work. cost_s: of a move.

        Steps ascend; those that are no measure are left out.
        """
        self._works.append((step, work))
        coming = SplitWork(
            expected([(number, each.rollout_s) for number, each in self._works]),
            expected([(number, each.trainer_s) for number, each in self._works]),
        )
        candidates = {split: step_s(coming, split) for split in dict.fromkeys((here, *self._splits))}
        now_s = candidates[here]
        better: dict[Split, tuple[int, float]] = {}
        for split, seconds in candidates.items():
            if seconds < now_s:
                steps, lost_s = self._better.get(split, (0, 0.0))
                better[split] = steps + 1, lost_s + now_s - seconds
        self._better = better
        # Among divisions that are alike, the one with the fewest devices to move.
        best = min(candidates, key=lambda split: (candidates[split], abs(split[0] - here[0])))
        if best == here:
            return SplitVerdict(here, here, work, coming, candidates)
        steps, lost_s = better[best]
        threshold_s = cost_s + ERROR * now_s
        return SplitVerdict(
            here, best, work, coming, candidates, lost_s > threshold_s, steps, lost_s, threshold_s
        )


def step_s(work: SplitWork, split: Split) -> float:
    """Seconds of a step in a division: both stages work at once, and the slower one decides."""
    return max(work.rollout_s / split[0], work.trainer_s / split[1])
