"""Append-only JSON-lines files of a run: one object a line, flushed, strictly JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class LineFile:
    """Appends to `path`; a line that a crash cut short is ended before the first new one."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        if self._file.tell():
            with path.open("rb") as written:
                written.seek(-1, 2)
                if written.read(1) != b"\n":
                    self._file.write("\n")

    def write(self, *records: Mapping[str, Any]) -> None:
        """One line a record; numbers that JSON cannot hold (NaN, infinity) become null."""
        for record in records:
            self._file.write(json.dumps(plain(record), allow_nan=False, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The file's records; lines that a crash cut short are left out, a missing file has none."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if (record := _record(line)) is not None:
                yield record


class LineFollower:
    """What is added to a file of JSON lines. offset: bytes of it that were read before."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset

    def new(self) -> list[dict[str, Any]]:
        """Records of the lines that were ended since the last call; a file that is shorter than what was read
        of it is another one, and begins anew."""
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            if file.seek(0, 2) < self.offset:
                self.offset = 0
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [record for line in whole.splitlines() if (record := _record(line)) is not None]


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys: {"a": {"b": 1}} → {"a.b": 1}."""
    out: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _record(line: str | bytes) -> dict[str, Any] | None:
    """None for a line that a crash cut short."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def plain(value: Any) -> Any:
    """Nested values that strict JSON holds: what is no number becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
