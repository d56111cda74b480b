"""Finds observations that repeat the episode so far: contexts then grow with the square of the steps. Pure.

The agent's context keeps every observation. If each contains those before it, an episode of n steps costs
n²/2 steps' worth of tokens instead of n:

    observation 1   begin
    observation 2   begin  you went left
    observation 3   begin  you went left  you went up        <- all of observation 2 again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from earl.env.conformance.usage import trend

# Observations that an episode must have to be judged, the first and one for each step.
LEAST_OBSERVATIONS = 5
# Growth that is no history: counters and short lists grow too.
LEAST_GROWTH_BYTES = 8
# Share of the steps of which the text must still be shown at the end, and share of a step's new text.
MOST_STEPS = 0.9
MOST_TEXT = 0.5
# A shorter line that is part of a longer one is chance.
LEAST_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class RepeatedHistory:
    """The share of repetition in one episode's observations.

    steps: of the episode. shown_bytes: all observations together. repeated_bytes: those of them that an
    earlier observation had shown.
    """

    steps: int
    shown_bytes: int
    repeated_bytes: int


def repeated_history(texts: Sequence[str]) -> RepeatedHistory | None:
    """Judges the observations of an episode in order; None if they do not repeat the episode so far.

    They do if they grow steadily, and each contains the one before it, or the lines that nearly every step
    brought are still there in the last one. A board that is drawn anew, a prompt that is shown each time
    and a list of the last few moves are no history.
    """
    texts = [text.strip() for text in texts]
    if len(texts) < LEAST_OBSERVATIONS:
        return None
    sizes = [len(text.encode()) for text in texts]
    if not trend(list(enumerate(sizes))).grows(LEAST_GROWTH_BYTES):
        return None
    if not (_contain_each_other(texts) or _keep_lines(texts)):
        return None
    return RepeatedHistory(len(texts) - 1, sum(sizes), sum(sizes) - _new_bytes(texts))


def _contain_each_other(texts: Sequence[str]) -> bool:
    after_prompt = texts[1:]  # a first observation may be shown once
    return all(earlier in later and earlier != later for earlier, later in pairwise(after_prompt))


def _keep_lines(texts: Sequence[str]) -> bool:
    """Returns whether the last text still has the lines that the steps between brought, or more of them."""
    last = set(_lines(texts[-1]))

    def remains(line: str) -> bool:
        return line in last or (len(line) >= LEAST_CHARACTERS and line in texts[-1])

    brought = kept = 0
    for earlier, later in pairwise(texts[:-1]):
        before = set(_lines(earlier))
        new = [line for line in _lines(later) if line not in before]
        brought += bool(new)
        remaining = sum(len(line) for line in new if remains(line))
        kept += bool(new) and remaining >= MOST_TEXT * sum(map(len, new))
    return brought >= LEAST_OBSERVATIONS - 2 and kept >= MOST_STEPS * brought


def _new_bytes(texts: Sequence[str]) -> int:
    """Bytes of the texts that no earlier text had, as a whole, as a line, or as the beginning of a line."""
    new_bytes, known, previous = 0, set[str](), ""
    for text in texts:
        rest = text.replace(previous, "\n", 1) if previous else text
        for line in _lines(rest):
            if line not in known:
                begun = (earlier for earlier in _lines(previous) if line.startswith(earlier))
                new_bytes += len(line.encode()) - max((len(earlier.encode()) for earlier in begun), default=0)
        known.update(_lines(text))
        previous = text
    return new_bytes


def _lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line]
