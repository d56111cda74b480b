"""Append-only JSON-lines files of a run: one object a line, written at once, strictly JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from earl.expendable import ExpendableFile


class LineFile:
    """Appends lines to `path`. A line that a crash or a full disk truncated is ended before the next one.

    A file that cannot be opened is tried again with every line. size_bytes: the file's length as far as this
    writer knows it, 0 until it is open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._expendable = ExpendableFile(path)
        self._file: FileIO | None = None
        self._truncated = False
        self.size_bytes = 0
        with self._expendable.written():
            self._file = self._open()

    def write(self, *records: Mapping[str, Any]) -> bool:
        """`append` for what a run can do without: an OSError is logged. Returns whether it was written."""
        with self._expendable.written():
            self.append(*records)
            return True
        return False

    def append(self, *records: Mapping[str, Any]) -> None:
        """Appends one line for each record; numbers that JSON cannot hold (NaN, infinity) become null.

        Raises OSError.
        """
        lines = [json.dumps(plain(record), allow_nan=False, ensure_ascii=False) + "\n" for record in records]
        if self._file is None:
            self._file = self._open()
        rest = memoryview(("\n" * self._truncated + "".join(lines)).encode())
        while rest:
            count = self._file.write(rest) or 0
            self._truncated = rest[count - 1] != ord("\n") if count else self._truncated
            rest = rest[count:]
            self.size_bytes += count

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> FileIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = self._path.open("ab", buffering=0)
        self.size_bytes = file.tell()
        if self.size_bytes:
            with self._path.open("rb") as written:
                written.seek(-1, 2)
                self._truncated = written.read(1) != b"\n"
        return file


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The file's records; lines that a crash truncated are left out, a missing file has none."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if (record := parsed(line)) is not None:
                yield record


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys: {"a": {"b": 1}} → {"a.b": 1}."""
    out: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def parsed(line: str | bytes) -> dict[str, Any] | None:
    """A line's record; None if it is no JSON object, such as a line that a crash truncated."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def plain(value: Any, digits: int = 0) -> Any:
    """The nested value as strict JSON can hold it: NaN and infinity become None.

    digits: significant digits of floats that are kept; 0 for all.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return float(f"{value:.{digits}g}") if digits else value
    if isinstance(value, Mapping):
        return {str(key): plain(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, digits) for item in value]
    return value
