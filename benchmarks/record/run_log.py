"""results/runs.jsonl: a line when a benchmark starts and one when it ends, whatever becomes of it.

    start ─► saved | elsewhere | failed | interrupted | refused        no end: it was killed, or still runs

The file only grows: each line is appended by one write, so that several benchmarks may run at once.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.record.checkout import RESULTS_FOLDER, ROOT, Checkout
from benchmarks.record.machine import machine_class

FILE = ROOT / RESULTS_FOLDER / "runs.jsonl"
# Names another file to append to; empty: none.
VARIABLE = "EARL_BENCH_RUNS"
ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class RunLog:
    """Appends the start and the end of one benchmark to `path`; None appends nothing.

    A file that cannot be written is said once on standard error: it never ends a benchmark.
    """

    path: Path | None
    id: str = field(default_factory=lambda: secrets.token_hex(6))

    @classmethod
    def default(cls, state: Checkout) -> RunLog:
        """The file that VARIABLE names, or that of the checkout; nothing for an installed package."""
        if (named := os.environ.get(VARIABLE)) is not None:
            return cls(Path(named) if named else None)
        return cls(FILE if state.commit else None)

    def start(self, name: str, arguments: Sequence[str], state: Checkout) -> None:
        self._append(
            "start", name=name, arguments=[public(text) for text in arguments], commit=state.label,
            machine=machine_class(),
        )  # fmt: skip

    def end(self, name: str, outcome: str, seconds: float, files: Sequence[Path], error: str = "") -> None:
        """outcome: saved (to the record), elsewhere, failed, interrupted, refused, or nothing_saved."""
        details: dict[str, Any] = {"files": [path.name for path in files]} if files else {}
        if error:
            details["error"] = public(error)[:ERROR_CHARACTERS]
        self._append("end", name=name, outcome=outcome, seconds=round(seconds, 1), **details)

    def _append(self, event: str, **fields: Any) -> None:
        if self.path is None:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"event": event, "id": self.id, "time": now, **fields}) + "\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            sys.stderr.write(f"earl bench: this {event} is not recorded: {error}\n")


def public(text: str) -> str:
    """Without folders outside the checkout: the record is published."""
    inside = " ".join(text.split()).replace(f"{ROOT}/", "")
    return re.sub(r"(?<![\w.])/(?:[^\s/=:,'\"]+/)+", "…/", inside)


def unfinished(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The starts in a runs.jsonl that have no end, oldest first."""
    events = [json.loads(line) for line in lines if line.strip()]
    ended = {event["id"] for event in events if event["event"] == "end"}
    return [event for event in events if event["event"] == "start" and event["id"] not in ended]
