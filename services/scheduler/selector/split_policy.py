"""The division of one pool of devices between rollout, trainer and, if there is one, reference stage. Pure.

    a committed step ─► device-seconds of each stage for a batch ─► those to expect when devices have moved
    ─► seconds of a step in every division ─► is another quicker? ─► what staying has lost in the steps in a
    row > what the moves to it cost ─► move

All stages work at once, so a step takes as long as the slowest of them: the largest W / D of a stage, with W
the device-seconds of a batch and D its devices. (The reference stage computes as episodes end, while others
are played and the trainer trains the batch before.) The threshold is the rule of switch_threshold.py, for
renting or buying of which the end is not known.

A move has one giver and one taker. A division that differs in three stages is two moves away: the one that
gains most is made first, and the other is decided after the steps that follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from earl.parallelism import POOLED, Division
from services.scheduler.selector.switch_threshold import ERROR
from services.scheduler.selector.work_trend import STEPS, expected

# Seconds that differ by no larger fraction are the same.
ROUNDING = 1e-9
# Devices of each stage that draws on the pool.
Split = Division


class SplitWork(NamedTuple):
    """Device-seconds of a batch in each stage, in the order of POOLED: its episodes in rollout, its training,
    its log-probs. Above 0, but for a reference stage that the run has not."""

    rollout_s: float
    trainer_s: float
    reference_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SplitVerdict:
    """A decision for a step. here: the division in use; best: the quickest one. moves: whether to go there.

    after: the division that one move leads to, best or on the way there. measured: in the last step; work:
    expected of the steps that the decision is for. candidates: seconds of a step in every division. steps:
    for how many in a row the best has been the quicker; lost_s: in those by staying; threshold_s: what that
    must exceed.
    """

    here: Split
    best: Split
    measured: SplitWork
    work: SplitWork
    candidates: dict[Split, float]
    after: Split = ()
    moves: bool = False
    steps: int = 0
    lost_s: float = 0.0
    threshold_s: float = 0.0

    @property
    def sentence(self) -> str:
        """The decision with its reason."""
        here, best = split_text(self.here), split_text(self.best)
        if self.best == self.here:
            return f"stays with {here}: no other division of the devices is predicted to be quicker"
        saving_s = self.candidates[self.here] - self.candidates[self.best]
        compared = f"{self.lost_s:.2f} s lost in {self.steps} steps, {saving_s:.2f} s of the next"
        if self.moves:
            first = "" if self.after == self.best else f", first to {split_text(self.after)}"
            return f"goes to {best}{first}: {compared}, more than the {self.threshold_s:.2f} s of a move"
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
            *(expected([(number, each[stage]) for number, each in self._works]) for stage in range(len(here)))
        )
        candidates = {split: step_s(coming, split) for split in dict.fromkeys((here, *self._splits))}
        now_s = candidates[here]
        better: dict[Split, tuple[int, float]] = {}
        for split, seconds in candidates.items():
            if seconds < now_s:
                steps, lost_s = self._better.get(split, (0, 0.0))
                better[split] = steps + 1, lost_s + now_s - seconds
        self._better = better
        # Quickest first; some are more than two moves away.
        ranked = sorted(candidates, key=lambda split: candidates[split])
        quickest = next(split for split in ranked if first_moves(here, split, ranked))
        alike = [
            split
            for split in ranked
            if candidates[split] <= candidates[quickest] * (1 + ROUNDING) and first_moves(here, split, ranked)
        ]
        best = min(alike, key=lambda split: (moves_between(here, split), devices_moved(here, split)))
        if best == here:
            return SplitVerdict(here, here, work, coming, candidates, here)
        # If two gain alike, the one with the fewest devices to move in all, and afterwards.
        after = min(
            first_moves(here, best, ranked),
            key=lambda split: (
                candidates[split],
                devices_moved(here, split) + devices_moved(split, best),
                devices_moved(split, best),
            ),
        )
        steps, lost_s = better[best]
        threshold_s = moves_between(here, best) * cost_s + ERROR * now_s
        return SplitVerdict(
            here, best, work, coming, candidates, after, lost_s > threshold_s, steps, lost_s, threshold_s
        )


def step_s(work: SplitWork, split: Split) -> float:
    """Seconds of a step in a division: all stages work at once, and the slowest one decides."""
    return max(seconds / devices for seconds, devices in zip(work, split, strict=False))


def first_moves(here: Split, there: Split, splits: Sequence[Split]) -> list[Split]:
    """The divisions that the first of at most two moves to another division may lead to.

    None if it is further away: stages with larger replicas cannot give every number of devices to others.
    """
    if moves_between(here, there) < 2:
        return [there]
    return [each for each in splits if moves_between(here, each) == 1 == moves_between(each, there)]


def moves_between(here: Split, there: Split) -> int:
    """The moves from one division to another: 0, 1 if one stage takes what one gives or what is idle, else 2
    or more."""
    more = sum(after > before for before, after in zip(here, there, strict=True))
    fewer = sum(after < before for before, after in zip(here, there, strict=True))
    if not more and not fewer:
        return 0
    return 1 if more == 1 and fewer <= 1 else 2


def devices_moved(here: Split, there: Split) -> int:
    """The devices that come to a stage between two divisions of a pool."""
    return sum(max(0, after - before) for before, after in zip(here, there, strict=True))


def split_text(split: Split) -> str:
    """A division in words: "rollout 6, trainer 2"."""
    return ", ".join(f"{stage} {devices}" for stage, devices in zip(POOLED, split, strict=False))
