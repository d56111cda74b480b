"""The logs of a run's processes, merged by time, and followed as they grow.

    logs/NAME.log ─ one reader each: rotation, a line that is not ended yet ─► Line ─┐
    logs/NAME.log ──────────────────────────────────────────────────────────► Line ─┴─► by time

A line that is no record of `earl.obs.log` (a traceback's, a library's) belongs to the moment of the one
before it in its file.
"""

from __future__ import annotations

import heapq
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from earl.visible import visible

# Keys of a record that are not its fields.
STANDARD_KEYS = ("time", "level", "process", "logger", "message", "traceback")
# A line without an end that is longer than this is cut there.
LINE_BYTES = 1 << 20
BEGINNING_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of one process's log. time_s: Unix seconds. record: None for a line that is no JSON record."""

    time_s: float
    process: str
    text: str
    record: Mapping[str, Any] | None = None

    @property
    def level(self) -> int:
        """The line's level, a number of `logging`; a line without a record takes the level before it."""
        if self.record is None:
            return logging.NOTSET
        names = logging.getLevelNamesMapping()
        return names.get(str(self.record.get("level", "")).upper(), logging.INFO)

    def as_object(self) -> dict[str, Any]:
        """The record, or time, process and message of what is none."""
        if self.record is not None:
            return dict(self.record)
        time = datetime.fromtimestamp(self.time_s, UTC).isoformat(timespec="milliseconds")
        return {"time": time.replace("+00:00", "Z"), "process": self.process, "message": self.text}

    def words(self) -> list[str]:
        """Message and fields, and below them the traceback's lines; what a terminal would obey is visible."""
        if self.record is None:
            return [visible(self.text)]
        fields = " ".join(
            f"{key}={value_text(value)}" for key, value in self.record.items() if key not in STANDARD_KEYS
        )
        message = str(self.record.get("message", ""))
        traceback = str(self.record.get("traceback", "")).splitlines()
        words = [f"{message}  {fields}" if fields else message, *(f"    {line}" for line in traceback)]
        return [visible(line) for line in words]


def value_text(value: Any) -> str:
    return value if isinstance(value, str) and " " not in value else json.dumps(value, ensure_ascii=False)


class LogFile:
    """One process's log, read on from where the last call ended; also when it is replaced or cut off."""

    def __init__(self, path: Path) -> None:
        self.process = path.stem
        self._path = path
        self._file: IO[bytes] | None = None
        self._time_s = 0.0
        self._rest = b""

    def lines(self) -> Iterator[LogLine]:
        """Lines that were added since the last call."""
        while self._open():
            assert self._file is not None
            for raw in self._file:
                if not raw.endswith(b"\n"):
                    self._rest += raw
                    if len(self._rest) < LINE_BYTES:
                        break
                    raw = b""
                yield self._line((self._rest + raw).decode("utf-8", "replace").rstrip("\n"))
                self._rest = b""
            if not self._replaced():
                return
            if self._rest:
                yield self._line(self._rest.decode("utf-8", "replace"))
            self.close()

    def _open(self) -> bool:
        if self._file is None:
            try:
                self._file = open(self._path, "rb")  # noqa: SIM115
            except OSError:
                return False
            self._rest = b""
            self._time_s = self._time_s or self._first_time(self._file)
        return True

    def _first_time(self, file: IO[bytes]) -> float:
        """Time of the first record near the beginning, for lines before it; else of the last write."""
        beginning = file.read(BEGINNING_BYTES).decode("utf-8", "replace")
        file.seek(0)
        times = (
            time_of(record) for line in beginning.splitlines() if (record := record_of(line)) is not None
        )
        return next(filter(None, times), os.fstat(file.fileno()).st_mtime)

    def _replaced(self) -> bool:
        """Returns whether its name is another file's now, or what was read was cut off."""
        assert self._file is not None
        try:
            now = os.stat(self._path)
        except OSError:
            return False  # its successor comes
        here = os.fstat(self._file.fileno())
        return not os.path.samestat(now, here) or here.st_size < self._file.tell()

    def _line(self, text: str) -> LogLine:
        record = record_of(text)
        if record is not None:
            self._time_s = time_of(record) or self._time_s
        return LogLine(self._time_s, self.process, text, record)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def record_of(text: str) -> Mapping[str, Any] | None:
    """The record of a line that `earl.obs.log` wrote; None for any other line."""
    if not text.startswith("{"):
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, dict) and "message" in record else None


def time_of(record: Mapping[str, Any]) -> float:
    """The record's time in Unix seconds; 0 if it has none."""
    try:
        return datetime.fromisoformat(str(record.get("time", ""))).timestamp()
    except ValueError:
        return 0.0


@dataclass(frozen=True, slots=True)
class LineFilter:
    """Lets through lines at least of this level and not before `since` (Unix seconds)."""

    level: int = logging.NOTSET
    since: float = 0.0


class Logs:
    """The logs of a run's processes: all of them, also those that come later, or the named ones."""

    def __init__(self, directory: Path, processes: Sequence[str], chosen: LineFilter) -> None:
        self._directory = directory
        self._processes = frozenset(processes)
        self._filter = chosen
        self._files: dict[str, LogFile] = {}
        # Whether the last record of each passed: what follows it goes with it.
        self._shown: dict[str, bool] = {}

    def lines(self) -> Iterator[LogLine]:
        """Yields the lines written since the last call, by time."""
        for path in sorted(self._directory.glob("*.log")):
            if path.stem not in self._files and (not self._processes or path.stem in self._processes):
                self._files[path.stem] = LogFile(path)
        files = self._files.values()
        yield from heapq.merge(*(self._of(file) for file in files), key=lambda line: line.time_s)

    def _of(self, file: LogFile) -> Iterator[LogLine]:
        for line in file.lines():
            if line.record is not None or file.process not in self._shown:
                self._shown[file.process] = self._passes(line)
            if self._shown[file.process] and line.text.strip():
                yield line

    def _passes(self, line: LogLine) -> bool:
        return line.time_s >= self._filter.since and (line.level >= self._filter.level or line.record is None)
