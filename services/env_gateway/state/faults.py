"""Faults of each host with each environment: how often each text came, and the last one. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Key = tuple[str, str]
# Texts that are told apart of one pair, and characters of each that are kept.
MOST_TEXTS = 64
MOST_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class FaultSummary:
    """count: of all faults; commonest_count: of those with the text `commonest`, numbers aside."""

    count: int = 0
    last: str = ""
    commonest: str = ""
    commonest_count: int = 0


@dataclass(slots=True)
class _Texts:
    """counts: by a text without its numbers. newest: the last text of each."""

    counts: Counter[str]
    newest: dict[str, str]
    count: int = 0
    last: str = ""
    last_number: int = 0


class FaultTexts:
    """Fault texts by (host name, environment); they outlive the host's process."""

    def __init__(self) -> None:
        self._texts: dict[Key, _Texts] = {}
        # The pairs of each environment.
        self._pairs: dict[str, list[Key]] = {}
        self._unreported: dict[str, int] = {}
        self._number = 0

    def note(self, key: Key, text: str) -> None:
        """Counts a fault. Texts that differ in numbers alone count as one."""
        text = text[:MOST_CHARACTERS]
        kind = re.sub(r"\d+", "0", text)
        texts = self._texts.get(key)
        if texts is None:
            texts = self._texts[key] = _Texts(Counter(), {})
            self._pairs.setdefault(key[1], []).append(key)
        self._unreported[key[1]] = self._unreported.get(key[1], 0) + 1
        if kind not in texts.counts and len(texts.counts) >= MOST_TEXTS:
            rarest = min(texts.counts, key=texts.counts.__getitem__)
            del texts.counts[rarest], texts.newest[rarest]
        self._number += 1
        texts.counts[kind] += 1
        texts.newest[kind] = texts.last = text
        texts.count += 1
        texts.last_number = self._number

    def summary(self, keys: Iterable[Key]) -> FaultSummary:
        """The faults of these pairs together."""
        noted = [self._texts[key] for key in keys if key in self._texts]
        if not noted:
            return FaultSummary()
        counts: Counter[str] = Counter()
        newest: dict[str, str] = {}
        for texts in sorted(noted, key=lambda texts: texts.last_number):
            counts.update(texts.counts)
            newest.update(texts.newest)
        [(kind, commonest)] = counts.most_common(1)
        last = max(noted, key=lambda texts: texts.last_number).last
        return FaultSummary(sum(texts.count for texts in noted), last, newest[kind], commonest)

    @property
    def unreported(self) -> Mapping[str, int]:
        """Faults of each environment since it was last `reported`; the longest waiting comes first."""
        return self._unreported

    def reported(self, environment: str) -> None:
        """Takes note that the environment's faults so far were written down."""
        self._unreported.pop(environment, None)

    def hosts(self, environment: str) -> Sequence[Key]:
        """The pairs of an environment that had faults."""
        return self._pairs.get(environment, ())
