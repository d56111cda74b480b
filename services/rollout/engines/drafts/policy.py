"""Decides how many tokens are drafted, by what was accepted and by what rows of a step cost.

    acceptance of each sequence ─► tokens to expect of a step with 1, 2, … drafted ones
        ─► of all sequences' tokens those that speed theirs up most, as many as maximise
           the product of the sequences' tokens a second, by the seconds of a step of so many rows
    nothing was drafted, or nothing of it pays: the sequence rests for some steps, each time twice as many;
    after a rest for what does not pay it tries one token in any case, which shows whether it pays by now,
    as long as such trials take at most TRIALS of the engine's time

So what a sequence drafts grows while drafts are accepted and shrinks otherwise, and drafting ends by itself
where rows cost all of a step's time. The product, and not the sum: a batch ends with its slowest sequence,
which the drafts of quick ones would slow down. Seconds are those of earlier steps. Pure: time is an argument.
"""

from __future__ import annotations

import bisect
import statistics
from collections import deque
from collections.abc import Sequence

import numpy as np

MOST_DRAFTED = 16
# What a sequence's earlier trials count after a new draft, and what those of all count after a trial.
KEPT, KEPT_OF_ALL = 0.8, 0.95
# Before anything was tried, and at most.
FIRST_RATE, HIGHEST_RATE = 0.5, 0.98
# Steps of one size that its seconds are the median of; sizes that are kept. A size that was not computed for
# so many steps is forgotten, so that it is tried again.
STEPS, SIZES, FORGOTTEN = 9, 64, 1024
# Steps of a rest at first and at most: after what does not pay, and after what found no draft.
REST, LONGEST_REST, LONGEST_SEARCH = 8, 256, 8
# The part of all steps' seconds that trials may add to them.
TRIALS = 0.01


class DraftPolicy:
    """Acceptance and rests of the sequences of S slots. most: tokens that one drafts in a step."""

    def __init__(self, slots: int, most: int = MOST_DRAFTED) -> None:
        self._most = most
        # Decayed counts of tokens that were tried, and of those accepted.
        self._tried = np.zeros(slots)
        self._accepted = np.zeros(slots)
        # Acceptance of all sequences: what a new one begins with.
        self._common = FIRST_RATE
        # Steps until a slot's sequence drafts again, 0: now; and how many its next rests have.
        self._rest = np.zeros(slots, dtype=np.int64)
        self._next_rest = np.full(slots, REST, dtype=np.int64)
        self._next_search = np.ones(slots, dtype=np.int64)
        # The sequence drafts one token in any case.
        self._tries = np.zeros(slots, dtype=np.bool_)
        self._cost = StepCost()
        # Rows that the step to come would have without trials, 0 if there are none; seconds that trials have
        # added to steps, and those of all steps.
        self._without_trials = 0
        self._trials_s = self._steps_s = 0.0

    def begin(self, slot: int) -> None:
        """Another sequence runs in the slot."""
        self._tried[slot] = self._accepted[slot] = 0.0
        self._rest[slot], self._next_rest[slot], self._next_search[slot] = 0, REST, 1
        self._tries[slot] = False

    def most(self, slot: int) -> int:
        """Tokens that may be looked up for the slot's sequence in this step, 0 while it rests. Counts the
        step."""
        if self._rest[slot] > 0:
            self._rest[slot] -= 1
            return 0
        return 1 if self._tries[slot] else self._most

    def chosen(self, slots: Sequence[int], drafted: Sequence[int], rows: int) -> np.ndarray:
        """Returns how many of the tokens that each sequence could draft are computed [N].

        slots [N]: whose sequences sample in this step; drafted [N]; rows: of the step without drafts.
        """
        places = np.repeat(np.arange(len(slots)), drafted)
        if not len(places):
            return np.zeros(len(slots), dtype=np.int64)
        each = np.array(slots)
        rates = (self._accepted[each] + self._common) / (self._tried[each] + 1)
        numbers = np.concatenate([np.arange(1, count + 1) for count in drafted if count])
        rates = np.minimum(rates, HIGHEST_RATE)[places]
        # A drafted token counts if all before it are accepted, too; tokens to expect, and without the last.
        tokens = (1 - rates ** (numbers + 1)) / (1 - rates)
        gains = np.log(tokens / (tokens - rates**numbers))
        affordable = self._trials_s <= TRIALS * self._steps_s
        tries = self._tries[each][places] & affordable
        order = np.lexsort((-gains, ~tries))
        gained = np.concatenate(([0.0], np.cumsum(gains[order])))
        lost = len(slots) * np.log(self._cost.seconds(rows + np.arange(len(gained))))
        paying, trials = int(np.argmax(gained - lost)), int(tries.sum())
        number = max(paying, trials)
        self._without_trials = rows + paying if trials > paying else 0
        counts = np.bincount(places[order[:number]], minlength=len(slots))
        for slot, offered, taken in zip(slots, drafted, counts.tolist(), strict=True):
            if offered and not taken:
                self._rest[slot], self._tries[slot] = self._next_rest[slot], True
                self._next_rest[slot] = min(LONGEST_REST, 2 * self._next_rest[slot])
        return counts

    def missed(self, slot: int) -> None:
        """Nothing was there to draft for the slot's sequence."""
        self._rest[slot] = self._next_search[slot] - 1
        self._next_search[slot] = min(LONGEST_SEARCH, 2 * self._next_search[slot])

    def note(self, slot: int, drafted: int, accepted: int) -> None:
        """Takes note that so many of `drafted` tokens, at least 1, of the slot's sequence were accepted."""
        if self._tries[slot] and accepted:
            # What was tried before is of another time.
            self._tried[slot] = self._accepted[slot] = 0.0
        self._tries[slot], self._next_search[slot] = False, 1
        # Each accepted token, and the first that was not, is one trial.
        tried = min(drafted, accepted + 1)
        self._tried[slot] = KEPT * self._tried[slot] + tried
        self._accepted[slot] = KEPT * self._accepted[slot] + accepted
        kept = KEPT_OF_ALL**tried
        self._common = kept * self._common + (1 - kept) * accepted / tried
        if accepted:
            self._next_rest[slot] = REST

    def took(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        self._steps_s += seconds
        if self._without_trials:
            without_s = float(self._cost.seconds(np.array([self._without_trials]))[0])
            self._trials_s += max(0.0, seconds - without_s)
            self._without_trials = 0
        self._cost.took(rows, seconds)


class StepCost:
    """Seconds of a step by its rows.

    The first step of each number of rows is left out: it can take many times as long as the next one, for
    example where a kernel is compiled for it. Counted, it would keep such steps from being taken again.
    """

    def __init__(self) -> None:
        # Numbers of rows of which a step was computed; steps that count, and the last one of each size.
        self._computed: set[int] = set()
        self._steps = 0
        self._last: dict[int, int] = {}
        # Sizes that were measured, ascending, and the newest seconds of each.
        self._sizes: list[int] = []
        self._measured: dict[int, deque[float]] = {}
        self._medians: list[float] = []

    def took(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        if rows not in self._computed:
            self._computed.add(rows)
            return
        self._steps += 1
        if self._steps % FORGOTTEN == 0:
            self._forget()
        size = _size(rows)
        place = bisect.bisect_left(self._sizes, size)
        if size not in self._measured:
            if len(self._sizes) >= SIZES:
                return
            self._measured[size] = deque(maxlen=STEPS)
            self._sizes.insert(place, size)
            self._medians.insert(place, 0.0)
        self._last[size] = self._steps
        self._measured[size].append(seconds)
        # The smaller of two: a slow one among few is more probably chance.
        self._medians[place] = statistics.median_low(self._measured[size])

    def _forget(self) -> None:
        self._sizes = [size for size in self._sizes if self._steps - self._last[size] < FORGOTTEN]
        self._measured = {size: self._measured[size] for size in self._sizes}
        self._medians = [statistics.median_low(self._measured[size]) for size in self._sizes]

    def seconds(self, rows: np.ndarray) -> np.ndarray:
        """Seconds of steps of so many rows [N]: in proportion between the nearest sizes, beyond all of them
        those of the last, 1 if nothing was measured. Fewer rows take no more: what took longer was slow for
        another reason."""
        if not self._sizes:
            return np.ones(len(rows))
        return np.interp(rows, self._sizes, np.minimum.accumulate(self._medians[::-1])[::-1])


def _size(rows: int) -> int:
    """The number itself up to 15, then in steps of an eighth to a sixteenth."""
    step = 1 << max(0, rows.bit_length() - 4)
    return rows // step * step
