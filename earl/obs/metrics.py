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
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(record, dict):
                yield record


def plain(value: Any) -> Any:
    """Nested values that strict JSON holds: what is no number becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
