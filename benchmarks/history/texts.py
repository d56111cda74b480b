"""Prompts, what was answered to them in an earlier epoch, and how much of an answer stands there."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from services.rollout.engines.drafts.lookup import DraftLookup

# Tokens of a match that counts as reuse (RhymeRL, arXiv 2508.18588, Sec. 3).
REUSED_TOKENS = 7
# Answers of the epoch before to each prompt.
EPOCH_ANSWERS = 2
# Records of a list that is to be written once more.
RECORDS = 14
COLOURS = ("red", "green", "blue", "black", "white", "yellow", "brown", "grey")
THINGS = ("lamp", "chair", "table", "clock", "shelf", "mirror", "carpet", "vase", "desk", "sofa")
PLACES = ("Berlin", "Paris", "Rome", "Oslo", "Lisbon", "Vienna", "Prague", "Athens")
# Beginnings of texts of no particular form.
OPENINGS = (
    "The history of the steam engine begins",
    "To bake a good loaf of bread you need",
    "A binary search tree is a data structure in which",
    "The most important thing about living near the sea is",
    "When the train finally arrived, she",
    "Photosynthesis is the process by which",
    "The capital of France has been",
    "In order to learn a new language, one should",
)


def records(seed: int) -> str:
    """A list of things for sale, twice, and the heading of a third time: what an agent does that edits a
    file or fills in a form."""
    chosen = random.Random(seed)
    lines = [
        f"- {number}. {chosen.choice(COLOURS)} {chosen.choice(THINGS)} from {chosen.choice(PLACES)}: "
        f"{chosen.randrange(10, 500)} EUR"
        for number in range(1, RECORDS + 1)
    ]
    text = "\n".join(lines)
    return f"The list:\n{text}\n\nThe list once more:\n{text}\n\nThe list once more:\n"


def opening(seed: int) -> str:
    """The beginning of a text that may go anywhere."""
    return OPENINGS[seed % len(OPENINGS)]


def coverage(answer: Sequence[int], others: Sequence[Sequence[int]]) -> float:
    """The part of the answer's tokens that lie in a match of REUSED_TOKENS or more in one of the others."""
    known = {
        tuple(other[first : first + REUSED_TOKENS])
        for other in others
        for first in range(len(other) - REUSED_TOKENS + 1)
    }
    covered = np.zeros(len(answer), dtype=np.bool_)
    for first in range(len(answer) - REUSED_TOKENS + 1):
        if tuple(answer[first : first + REUSED_TOKENS]) in known:
            covered[first : first + REUSED_TOKENS] = True
    return float(covered.mean()) if len(answer) else 0.0


def accepted_and_steps(
    prompt: Sequence[int], answer: Sequence[int], references: Sequence[bytes], window: int
) -> tuple[int, int]:
    """Drafted tokens that stand, and steps, if every step drafts up to `window` of them: what the answer, as
    it was sampled, allows."""
    lookup, ids = DraftLookup(references), np.array([*prompt, *answer], dtype=np.int64)
    place, steps, accepted = len(prompt), 0, 0
    while place < len(ids):
        draft = lookup.propose(ids[:place], min(window, len(ids) - place - 1)).tokens
        stands = 0
        while stands < len(draft) and draft[stands] == ids[place + stands]:
            stands += 1
        place, steps, accepted = place + stands + 1, steps + 1, accepted + stands
    return accepted, steps


def reference(ids: Sequence[int]) -> bytes:
    """Token ids as a request brings them."""
    return np.asarray(ids, dtype=np.int32).tobytes()
