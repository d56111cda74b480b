"""Assigns a batch's sequences to engines, so that the last of them ends early. Pure.

    predicted lengths ─► CLASSES of about equal ones, the longest first
    engines ─► the quickest first, of equal ones those that are free first
    level ─► each class goes to the first engines that hold it until `level` seconds; the lowest level wins

Sequences of about equal length share an engine, so that few of its steps are for one sequence alone. One
that takes longer than the level anywhere has an idle engine to itself, of those that are quickest for it. A
RESERVE of each engine's time is left to the shortest sequences, which begin last and may still move
(`services.scheduler.assign.moves`). An engine that ends one batch late has short sequences of the next: the
complementary order of RhymeRL's HistoPipe (arXiv 2508.18588), which follows from `free_s`. Where layouts
differ, the longest sequences have the engines of the quickest steps, mostly those of larger tp.

The search is MULTIFIT (Coffman, Garey, Johnson, SIAM J. Comput. 7, 1978): first fit decreasing below a level,
in steps and then by halves. An engine of some slots is filled in shelves (first fit decreasing height): so
many sequences begin at once, and the next ones when the longest of them has ended. In truth each begins as
soon as a slot is open, so an engine ends no later than that. The sequence that has to begin first, to end by
its batch's level on a full engine, does: the longest of a batch, mostly, and a long one of the next batch
before short ones of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from earl.parallelism import Parallelism
from services.scheduler.assign.cost import DecodeCost

# Ranges of length: within one, sequences count as equally long.
CLASSES = 48
# The part of an engine's time that the shortest sequences have.
RESERVE = 0.25
# Factor between two levels that are tried first, and the part of the level to which it is searched.
STEP, PRECISION = 1.1, 0.02


@dataclass(frozen=True, slots=True)
class EngineKind:
    """The cost of an engine, and how many sequences it decodes at once."""

    cost: DecodeCost
    slots: int


# The engines of a parallelism; None if their cost is not known.
EngineKinds = Callable[[Parallelism], EngineKind | None]


@dataclass(frozen=True, slots=True)
class EngineFleet:
    """Engines, one at least.

    kinds: of them. kind: int (engines,), the index of each one's kind. free_s: float (engines,), seconds from
    now at which each is free.
    """

    kinds: Sequence[EngineKind]
    kind: np.ndarray
    free_s: np.ndarray


@dataclass(frozen=True, slots=True)
class Assignment:
    """The engine of each sequence, and when it is played; seconds from now.

    engine: int (sequences,), index of each one's engine. latest_s: float (sequences,), when each has to begin
    on a full engine to end by the level; below 0 where even now is late. Engines begin the earliest first.
    level_s: when all end but those that take longer on an idle engine. end_s: float (engines,), when each
    engine has played what it has.
    """

    engine: np.ndarray
    latest_s: np.ndarray
    level_s: float
    end_s: np.ndarray


def assign(prompts: np.ndarray, responses: np.ndarray, fleet: EngineFleet) -> Assignment:
    """Assigns sequences with prompts and predicted responses of so many tokens, int or float (sequences,).

    A response below 1 counts as 1. Versions are the caller's: it gives the sequences that may begin now.
    """
    responses = np.maximum(1.0, responses)
    engine_rank = _engine_rank(fleet)
    order = np.argsort(-responses, kind="stable")
    packing = _Packing(prompts[order].astype(float), responses[order], fleet, engine_rank)
    level_s, filled = packing.lowest()
    engine = np.empty(len(order), int)
    for start, take in zip(packing.starts, filled.takes, strict=True):
        engine[order[start : start + int(take.sum())]] = np.repeat(engine_rank, take)
    end_s = np.empty(len(engine_rank))
    end_s[engine_rank] = filled.end_s
    took_s = np.stack([each.cost.shared_s(prompts, responses, each.slots) for each in fleet.kinds])
    latest_s = level_s - took_s[fleet.kind[engine], np.arange(len(engine))]
    return Assignment(engine, latest_s, level_s, end_s)


def _engine_rank(fleet: EngineFleet) -> np.ndarray:
    """Indices of engines: those whose steps are quickest first, of these the first that are free."""
    step_s = np.asarray([kind.cost.step_s for kind in fleet.kinds])
    return np.lexsort((fleet.free_s, step_s[fleet.kind]))


@dataclass(frozen=True, slots=True)
class _Filled:
    """takes: of each class, the number of sequences of each engine; end_s: of each engine, in seconds."""

    takes: list[np.ndarray]
    end_s: np.ndarray


class _Packing:
    """Sequences, longest first, in classes; engines in the order in which they are filled."""

    def __init__(
        self, prompts: np.ndarray, responses: np.ndarray, fleet: EngineFleet, rank: np.ndarray
    ) -> None:
        kind = fleet.kind[rank]
        self._free_s = fleet.free_s[rank]
        self._slots = np.asarray([kind.slots for kind in fleet.kinds])[kind]
        self._step_s = np.asarray([kind.cost.step_s for kind in fleet.kinds])[kind]
        self.starts = starts = _class_starts(responses)
        self._counts = np.diff([*starts, len(responses)])
        # By class: the longest response, and the mean of what a sequence adds, by engine.
        self._longest = responses[starts]
        added = np.stack(
            [_class_means(kind.cost.added_s(prompts, responses), starts) for kind in fleet.kinds], axis=1
        )
        self._added_s = np.maximum(added, 1e-9)[:, kind]
        tokens = np.cumsum(self._counts * self._longest)
        # Classes that leave a part of each engine's time to shorter ones.
        self._reserves = tokens <= (1 - RESERVE) * tokens[-1:]

    def lowest(self) -> tuple[float, _Filled]:
        """The lowest level in seconds that holds all sequences, to PRECISION, and what is filled below it."""
        start_s = float(self._free_s.min())
        low_s = height_s = self._mean_height_s(start_s)
        while (filled := self.fill(start_s + height_s)) is None:
            low_s, height_s = height_s, STEP * height_s
        while height_s - low_s > PRECISION * height_s:
            middle_s = (low_s + height_s) / 2
            better = self.fill(start_s + middle_s)
            if better is None:
                low_s = middle_s
            else:
                height_s, filled = middle_s, better
        return start_s + height_s, filled

    def _mean_height_s(self, start_s: float) -> float:
        """Seconds from start_s to the level of a fleet whose slots are all full until then: the lowest to
        try."""
        steps = (self._counts * self._longest).sum()
        work_s = float((self._counts @ self._added_s + steps * self._step_s / self._slots).mean())
        return max(1e-6, (work_s + float((self._free_s - start_s).sum())) / len(self._free_s))

    def fill(self, level_s: float) -> _Filled | None:
        """Fills engines up to a level in seconds; None if that is too low."""
        left_s = level_s - self._free_s
        reserve_s = RESERVE * np.maximum(left_s, 0.0)
        open_slots = np.zeros(len(left_s), int)
        idle = left_s > 0
        takes: list[np.ndarray] = []
        for number, count in enumerate(self._counts.tolist()):
            shelf_s = self._step_s * self._longest[number]
            added_s = self._added_s[number]
            usable_s = left_s - reserve_s if self._reserves[number] else left_s
            fits = _fitting(usable_s, open_slots, self._slots, shelf_s, added_s)
            take = np.minimum(np.maximum(count - np.cumsum(fits) + fits, 0), fits)
            missing = count - int(take.sum())
            if missing:
                alone_s = shelf_s + added_s
                quickest = alone_s <= 1.05 * alone_s.min()
                alone = np.flatnonzero(idle & quickest & (take == 0))[:missing]
                if len(alone) < missing:
                    return None
                take[alone] = 1
            shelves = -(-np.maximum(take - open_slots, 0) // self._slots)
            open_slots += shelves * self._slots - take
            left_s -= take * added_s + shelves * shelf_s
            idle &= take == 0
            takes.append(take)
        return _Filled(takes, level_s - left_s)


def _fitting(
    left_s: np.ndarray, open_slots: np.ndarray, slots: np.ndarray, shelf_s: np.ndarray, added_s: np.ndarray
) -> np.ndarray:
    """The number of sequences of a class that each engine takes in the seconds that it has left: in the open
    slots of its last shelf, on whole new shelves, and on one more."""
    left_s = np.maximum(left_s, 0.0)
    first = np.minimum(open_slots, (left_s / added_s).astype(int))
    left_s = np.where(first == open_slots, left_s - first * added_s, 0.0)
    shelves = (left_s / (shelf_s + slots * added_s)).astype(int)
    left_s = left_s - shelves * (shelf_s + slots * added_s) - shelf_s
    partial = np.minimum(slots - 1, (np.maximum(left_s, 0.0) / added_s).astype(int))
    return first + shelves * slots + partial


def _class_starts(responses: np.ndarray) -> np.ndarray:
    """Indices at which classes of descending lengths begin: the range of their logarithms in equal parts."""
    if not len(responses):
        return np.zeros(0, int)
    logarithm = np.log(responses)
    spread = max(float(logarithm[0] - logarithm[-1]), 1e-9)
    part = np.minimum((logarithm[0] - logarithm) / spread * CLASSES, CLASSES - 1).astype(int)
    return np.flatnonzero(np.diff(part, prepend=-1))


def _class_means(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    counts = np.diff([*starts, len(values)])
    return np.add.reduceat(values, starts) / counts if len(starts) else np.zeros(0)
