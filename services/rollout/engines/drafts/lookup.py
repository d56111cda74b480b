"""Drafts of one sequence: what followed its last tokens where those stood before.

    references (what others of the task wrote, newest first) ─┐
                                                              ├─► places behind the longest equal suffix
    the sequence itself ──────────────────────────────────────┘      ─► token by token, what most of them have

RhymeRL's HistoSpec (arXiv 2508.18588) keeps a suffix tree for each prompt. Here a sequence has a few thousand
tokens of references for as long as it runs, and one comparison over all of them finds every place. That takes
microseconds, and there is no tree to build, to bound or to remove from. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from earl.draft_figures import CONTEXT, ENVIRONMENT, TASK

# Stands between references; no token.
SEPARATOR = -1
# Tokens of the suffix that are compared, at most and at least.
LONGEST, SHORTEST = 16, 3
# Places that vote on the next token, the first in the references.
PLACES = 32
# A draft ends where the next token has a smaller part of the votes of all places.
LEAST_VOTES = 0.25


class Draft(NamedTuple):
    """Tokens that may follow. sources: for each of them, where the first place stands that has it and all
    before it, a source of earl.draft_figures."""

    tokens: list[int]
    sources: list[str]


class DraftLookup:
    """The references of a sequence. references: token ids, int32, what is most alike first. of_task: how many
    of them, the first, are of its task; the others are of its environment."""

    def __init__(self, references: Sequence[bytes], of_task: int = 0) -> None:
        parts = [np.full(1, SEPARATOR, np.int32)]
        for reference in references:
            parts += [np.frombuffer(reference, np.int32), parts[0]]
        self._references = np.concatenate(parts)
        # What stands before it is of the task.
        self._task_end = sum(map(len, parts[: 1 + 2 * of_task]))

    def propose(self, ids: np.ndarray, most: int) -> Draft:
        """Returns up to `most` tokens that may follow ids [N], of any integers."""
        if most < 1 or len(ids) < SHORTEST:
            return Draft([], [])
        tail = ids[-LONGEST:]
        places, longest = matches(self._references, tail)
        inside, length = matches(ids[:-1], tail)
        tokens: np.ndarray = self._references
        if length > longest:
            tokens, places, longest = ids, inside[::-1], length
        if longest < SHORTEST:
            return Draft([], [])
        draft, ends = followed(tokens, places[:PLACES].tolist(), most)
        if tokens is ids:
            return Draft(draft, [CONTEXT] * len(draft))
        return Draft(draft, [TASK if end <= self._task_end else ENVIRONMENT for end in ends])


def matches(tokens: np.ndarray, tail: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns the places in tokens [N] behind the longest suffix of tail [M] that is there, ascending, and
    its length; none and 0 if not even the last token is there."""
    places = np.flatnonzero(tokens == tail[-1])
    length = 1 if len(places) else 0
    while length and length < min(len(tail), len(tokens)):
        # A negative index would begin anew at the end.
        before = places[places >= length]
        longer = before[tokens[before - length] == tail[-1 - length]]
        if not len(longer):
            break
        places, length = longer, length + 1
    return places + 1, length


def followed(tokens: np.ndarray, places: Sequence[int], most: int) -> tuple[list[int], list[int]]:
    """Returns what follows at most of the places, token by token, and of each token the place behind it at
    the first of those that have it and all before it. A place has a vote until it differs."""
    draft: list[int] = []
    ends: list[int] = []
    voters, end = list(places), len(tokens)
    least = LEAST_VOTES * len(voters)
    while voters and len(draft) < most:
        nexts = [int(tokens[place]) if place < end else SEPARATOR for place in voters]
        # The first place's, if several are as frequent.
        token, votes = Counter(nexts).most_common(1)[0]
        if token == SEPARATOR or votes < least:
            break
        draft.append(token)
        voters = [place + 1 for place, following in zip(voters, nexts, strict=True) if following == token]
        ends.append(voters[0])
    return draft, ends
