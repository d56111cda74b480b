"""Checks a run's history: were its promises kept? It reads files alone, and needs nothing of the run.

    segments, oldest first ─► rounds in the order of their revisions ─► state ─► violations, gaps

*Proven*: the history begins with the run, lacks nothing, and every event was allowed where it stands.
*Violated*: some were not. *Incomplete*: nothing is wrong in what is there, and something is missing.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from earl.errors import ConfigError
from earl.history.format import FOLDER, PACKED, PLAIN, VERSION
from earl.history.state import LONGEST_ROUND_S, HistoryState

Verdict = Literal["proven", "violated", "incomplete"]
# Violations that are reported; each may bring about others.
MOST = 100
# Between two checks for tickets that wait for too long.
WAITS_S = 10.0


@dataclass(frozen=True, slots=True)
class HistoryFinding:
    """A line of a segment in which something is wrong, or missing; line 0: in all of it."""

    segment: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.segment}{f', line {self.line}' if self.line else ''}: {self.text}"


@dataclass(slots=True)
class CheckedHistory:
    """violations, gaps: at most MOST each. tickets: issued ones by state or bucket."""

    violations: list[HistoryFinding] = field(default_factory=list)
    gaps: list[HistoryFinding] = field(default_factory=list)
    segments: int = 0
    rounds: int = 0
    events: int = 0
    tickets: Mapping[str, int] = field(default_factory=dict)
    version: int = 0

    @property
    def verdict(self) -> Verdict:
        if self.violations:
            return "violated"
        return "incomplete" if self.gaps else "proven"


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the history. header: None for one that cannot be read. lines: of all of it, in order."""

    name: str
    number: int
    header: Mapping[str, Any] | None
    lines: Callable[[], Iterator[bytes]]

    @classmethod
    def of(cls, name: str, number: int, lines: Callable[[], Iterator[bytes]]) -> Segment:
        """A segment by its lines, the first of which is its header."""
        header = _parsed(next(lines(), b""))
        if header is None or header.get("history") != VERSION or not _is_header(header):
            header = None
        return cls(name, number, header, lines)

    @property
    def revision(self) -> int:
        return self.header["revision"] if self.header is not None else 0


def check(run: Path) -> CheckedHistory:
    """Checks the history of a run's directory. Raises ConfigError where there is none."""
    files = segment_files(run / FOLDER)
    if not files:
        raise ConfigError(
            f"{run} has no history",
            "a run writes one unless obs.history_bytes is 0; runs of older versions have none",
        )
    return check_segments(
        [Segment.of(path.name, number, partial(lines_of, path)) for number, path in files.items()]
    )


def check_segments(segments: Sequence[Segment]) -> CheckedHistory:
    """Checks segments, oldest first."""
    checker = _Checker()
    for place, segment in enumerate(segments):
        # Rounds beyond the revision that a later scheduler found were never stored.
        known = [later.revision for later in segments[place + 1 :] if later.header is not None]
        checker.read(segment, min(known, default=None))
    return checker.done()


def segment_files(folder: Path) -> dict[int, Path]:
    """The files of a history by number, oldest first; the packed one of a number that has both forms."""
    numbers: dict[int, Path] = {}
    for ending in (PLAIN, PACKED):
        for path in folder.glob(f"[0-9]*{ending}"):
            number = path.name.removesuffix(ending)
            if number.isdecimal():
                numbers[int(number)] = path
    return dict(sorted(numbers.items()))


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a segment. One that is damaged ends where it can be read no further."""
    if not path.exists():  # the scheduler has packed it since
        path = path.with_name(path.name.removesuffix(PLAIN) + PACKED)
    with gzip.open(path, "rb") if path.name.endswith(PACKED) else path.open("rb") as file:
        try:
            yield from file
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return


def _parsed(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _is_header(value: Mapping[str, Any]) -> bool:
    """Returns whether a header has all parts, and a state that can be taken over."""
    if not (isinstance(value.get("revision"), int) and isinstance(value.get("rules"), dict)):
        return False
    try:
        HistoryState().load(value["state"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return True


def _is_round(value: Mapping[str, Any]) -> bool:
    numbers = isinstance(value.get("r"), int) and isinstance(value.get("t"), (int, float))
    return numbers and isinstance(value.get("e"), list)


class _Checker:
    """Reads segments one after the other."""

    def __init__(self) -> None:
        self._state = HistoryState()
        self._report = CheckedHistory()
        self._number = 0
        # Revision and time of the newest round.
        self._revision = 0
        self._at_s = 0.0
        self._synced = False
        self._waits_at_s = 0.0

    def read(self, segment: Segment, stored: int | None) -> None:
        """stored: the revision beyond which nothing of it was stored; None: all may have been."""
        name = segment.name
        self._report.segments += 1
        if segment.number != self._number + 1:
            first, last = self._number + 1, segment.number - 1
            missing = f"segment {first:06}" if first == last else f"segments {first:06} to {last:06}"
            self._gap(name, 0, f"{missing} before it: missing")
            self._synced = False
        self._number = segment.number
        if segment.header is None:
            self._gap(name, 1, "its header cannot be read")
            self._synced = False
            return
        if stored is not None and segment.revision > stored:
            return
        self._begin(name, segment.header)
        torn = 0
        for line, text in enumerate(segment.lines(), 1):
            if line == 1:
                continue
            if torn:
                self._gap(name, torn, "a line that cannot be read stands before others")
                self._synced, torn = False, 0
            value = _parsed(text)
            if value is None or not _is_round(value):
                torn = line
                continue
            if stored is not None and value["r"] > stored:
                break
            self._round(name, line, value)

    def done(self) -> CheckedHistory:
        report, state = self._report, self._state
        report.events, report.version, report.tickets = state.events, state.version, state.counts()
        return report

    def _begin(self, name: str, header: Mapping[str, Any]) -> None:
        state, revision = self._state, header["revision"]
        state.rules = header["rules"]
        if self._synced and revision == self._revision:
            if difference := state.differs(header["state"]):
                self._violation(name, 1, f"what it begins with is not what was before: {difference}")
                state.load(header["state"])
        else:
            if self._synced:
                self._gap(name, 1, f"rounds {self._revision + 1} to {revision} before it are missing")
            elif self._report.segments == 1 and header["state"]["next_ticket"] > 1:
                self._gap(
                    name, 1, f"{header['state']['next_ticket'] - 1} tickets were issued before it begins"
                )
            state.load(header["state"])
        if header.get("took_over"):
            state.begin_life()
        self._revision, self._synced = revision, True

    def _round(self, name: str, line: int, value: Mapping[str, Any]) -> None:
        state, revision, at_s = self._state, value["r"], value["t"]
        if not self._synced:
            return
        if revision != self._revision + 1:
            self._gap(name, line, f"round {revision} follows on round {self._revision}")
            self._synced = False
            return
        self._revision = revision
        if self._at_s:
            state.clock_s += min(LONGEST_ROUND_S, max(0.0, at_s - self._at_s))
        self._at_s = at_s
        self._report.rounds += 1
        for event in value["e"]:
            self._guarded(name, line, state.apply, event)
        self._guarded(name, line, state.end_round)
        if state.clock_s - self._waits_at_s >= WAITS_S:
            self._waits_at_s = state.clock_s
            self._guarded(name, line, state.check_waits)

    def _guarded(self, name: str, line: int, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except ValueError as error:
            self._violation(name, line, str(error))
        except (TypeError, KeyError, IndexError, AttributeError) as error:
            self._violation(name, line, f"an event is malformed ({type(error).__name__}: {error})")

    def _violation(self, segment: str, line: int, text: str) -> None:
        if len(self._report.violations) < MOST:
            self._report.violations.append(HistoryFinding(segment, line, text))

    def _gap(self, segment: str, line: int, text: str) -> None:
        if len(self._report.gaps) < MOST:
            self._report.gaps.append(HistoryFinding(segment, line, text))
