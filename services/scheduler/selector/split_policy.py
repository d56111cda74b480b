"""The division of one pool of devices between rollout, trainer and, if there is one, reference stage. Pure.

    a committed step ─► device-seconds of each stage for a batch ─► those to expect when devices have moved
    ─► seconds of a step in every division ─► is another quicker? ─► what staying has lost in the steps in a
    row > what the moves to it cost ─► move

All stages work at once, so a step takes as long as the slowest of them: the largest W / D of a stage, with W
the device-seconds of a batch and D its devices. (The reference stage computes as episodes end, while others
are played and the trainer trains the batch before.) The threshold is the rule of switch_threshold.py, for
renting or buying of which the end is not known.

With a profile, each stage has in every division the layout that fits and is quickest there (DivisionLayouts),
and W is what that layout needs by the ratio of the profile. A division in which a stage can no longer hold
what is expected is left at once, for the quickest that holds it. So is one in which a sequence waits that
none of rollout's layouts there holds.

A move has one giver and one taker. A division that differs in three stages is two moves away: the one that
gains most is made first, and the other is decided after the steps that follow.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from earl.parallelism import POOLED, Division, Parallelism
from services.scheduler.selector.division_layouts import DivisionLayouts
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
    must exceed. urgent: a stage can no longer hold what is expected, or a sequence of waiting_tokens, which
    waits. layouts: of the stages in every division; None without a profile.
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
    urgent: bool = False
    layouts: DivisionLayouts | None = None
    waiting_tokens: float = 0.0

    def text(self, split: Split) -> str:
        """A division in words, with its layouts where they are known."""
        return split_text(split, () if self.layouts is None else self.layouts.layouts(split))

    @property
    def sentence(self) -> str:
        """The decision with its reason."""
        here, best = self.text(self.here), self.text(self.best)
        if self.urgent:
            first = "" if self.after == self.best else f", first to {self.text(self.after)}"
            if self.waiting_tokens:
                cause = f"no layout of {here} holds a sequence of {self.waiting_tokens:,.0f} tokens"
                return f"goes to {best} at once{first}: {cause}, which waits"
            return f"goes to {best} at once{first}: in no layout of {here} fits what is expected"
        if self.best == self.here:
            return f"stays with {here}: no other division of the devices is predicted to be quicker"
        saving_s = self.candidates[self.here] - self.candidates[self.best]
        compared = f"{self.lost_s:.2f} s lost in {self.steps} steps, {saving_s:.2f} s of the next"
        if self.moves:
            first = "" if self.after == self.best else f", first to {self.text(self.after)}"
            return f"goes to {best}{first}: {compared}, more than the {self.threshold_s:.2f} s of a move"
        return (
            f"stays with {here}: {best} is quicker, but {compared}; a move must save {self.threshold_s:.2f} s"
        )


class SplitPolicy:
    """Decides after every step. splits: the divisions that the stages can have in the replicas that they
    have, where no profile knows others."""

    def __init__(self, splits: Sequence[Split]) -> None:
        self._splits = tuple(splits)
        # (step, work, the layouts that it was measured in) of those that were measured.
        self._works: deque[tuple[int, SplitWork, tuple[Parallelism, ...]]] = deque(maxlen=STEPS)
        # For how many steps in a row a division has been quicker than the present one, and what those lost.
        self._better: dict[Split, tuple[int, float]] = {}

    def begin(self) -> None:
        """Another division is in use: what was lost by the former one no longer counts."""
        self._better = {}

    def decide(
        self, step: int, here: Split, work: SplitWork, cost_s: float, layouts: DivisionLayouts | None = None
    ) -> SplitVerdict:
        """Decides after a step in the division `here` that took so much work. cost_s: of a move. layouts: of
        the stages in `here` and in other divisions, by a profile.

        Steps ascend; those that are no measure are left out.
        """
        self._works.append((step, work, () if layouts is None else layouts.running))
        coming = self._expected(len(here), layouts)
        splits = self._splits if layouts is None else layouts.divisions()
        candidates = {split: step_s(coming, split, layouts) for split in dict.fromkeys((here, *splits))}
        now_s = candidates[here]
        better: dict[Split, tuple[int, float]] = {}
        for split, seconds in candidates.items():
            if seconds < now_s:
                steps, lost_s = self._better.get(split, (0, 0.0))
                better[split] = steps + 1, lost_s + now_s - seconds
        self._better = better
        # Quickest first; some are more than two moves away.
        ranked = sorted(candidates, key=lambda split: candidates[split])
        reached = [split for split in ranked if first_moves(here, split, ranked)]
        urgent = False
        if layouts is not None and not layouts.fits(here):
            fitting = [split for split in reached if layouts.fits(split)]
            urgent, reached = bool(fitting), fitting or reached
        best = nearest_of_quickest(here, reached, candidates)
        if best == here:
            return SplitVerdict(here, here, work, coming, candidates, here, layouts=layouts)
        after = first_move(here, best, ranked, candidates)
        if urgent:
            return SplitVerdict(
                here, best, work, coming, candidates, after, moves=True, urgent=True, layouts=layouts
            )
        steps, lost_s = better[best]
        threshold_s = moves_between(here, best) * cost_s + ERROR * now_s
        return SplitVerdict(
            here, best, work, coming, candidates, after, lost_s > threshold_s, steps, lost_s, threshold_s,
            layouts=layouts,
        )  # fmt: skip

    def relieve(self, here: Split, layouts: DivisionLayouts, tokens: float) -> SplitVerdict | None:
        """Decides for a sequence of so many tokens that waits, because no layout of rollout's devices in
        `here` holds it: goes to the quickest division that does, or that holds all else that is expected too,
        if there is one. None if no division holds it.

        Before anything was measured, the division with the fewest devices to move.
        """
        coming = work = SplitWork(*[0.0] * len(here))
        if self._works:
            coming, work = self._expected(len(here), layouts), self._works[-1][1]
        held, passable = layouts.holding()
        candidates = {split: step_s(coming, split, layouts) for split in dict.fromkeys((here, *passable))}
        reached = sorted(
            (split for split in held if first_moves(here, split, passable)),
            key=lambda split: candidates[split],
        )
        reached = [split for split in reached if layouts.fits(split)] or reached
        if not reached:
            return None
        best = nearest_of_quickest(here, reached, candidates)
        after = first_move(here, best, passable, candidates)
        return SplitVerdict(
            here, best, work, coming, candidates, after, moves=True, urgent=True, layouts=layouts,
            waiting_tokens=tokens,
        )  # fmt: skip

    def _expected(self, stages: int, layouts: DivisionLayouts | None) -> SplitWork:
        """The work to expect in the layouts in use: what was measured in others is scaled to them."""

        def points(stage: int) -> list[tuple[int, float]]:
            factors = [
                1.0 if layouts is None or not former else layouts.stages[stage].scaled(former[stage])
                for _, _, former in self._works
            ]
            return [
                (step, work[stage] * factor)
                for (step, work, _), factor in zip(self._works, factors, strict=True)
            ]

        return SplitWork(*(expected(points(stage)) for stage in range(stages)))


def step_s(work: SplitWork, split: Split, layouts: DivisionLayouts | None = None) -> float:
    """Seconds of a step in a division: all stages work at once, and the slowest one decides.

    work: in the layouts in use; layouts: of the division, if they may be others.
    """
    relative = (1.0,) * len(split) if layouts is None else layouts.relative(split)
    return max(
        seconds * factor / devices for seconds, devices, factor in zip(work, split, relative, strict=False)
    )


def nearest_of_quickest(here: Split, reached: Sequence[Split], candidates: Mapping[Split, float]) -> Split:
    """The quickest of some divisions, which are in the order of their seconds; of those alike the nearest."""
    quickest = candidates[reached[0]]
    alike = [split for split in reached if candidates[split] <= quickest * (1 + ROUNDING)]
    return min(alike, key=lambda split: (moves_between(here, split), devices_moved(here, split)))


def first_move(here: Split, best: Split, splits: Sequence[Split], candidates: Mapping[Split, float]) -> Split:
    """The division that the first move to the best one leads to: the quickest. If two gain alike, the one
    with the fewest devices to move in all, and afterwards."""
    return min(
        first_moves(here, best, splits),
        key=lambda split: (
            candidates[split],
            devices_moved(here, split) + devices_moved(split, best),
            devices_moved(split, best),
        ),
    )


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


def split_text(split: Split, layouts: Sequence[Parallelism] = ()) -> str:
    """A division in words: "rollout 6, trainer 2", with layouts "rollout 6 as dp3·tp2, trainer 2"."""
    parts = [f"{stage} {devices}" for stage, devices in zip(POOLED, split, strict=False)]
    for place, layout in enumerate(layouts):
        if math.prod(layout.replica) > 1:
            parts[place] += f" as {layout}"
    return ", ".join(parts)
