"""Writes the run's history (`earl.history.format`): each round before it is stored, in segments.

begin ─► header: the state at the stored revision ─► rounds ─► SEGMENT_BYTES: the next segment
                                                        └─► the one before is packed; oldest ones go
"""

from __future__ import annotations

import gzip
import os
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from earl.config.run import RunConfig
from earl.expendable import ExpendableFile
from earl.history.check import segment_files
from earl.history.format import FOLDER, PACKED, PLAIN, VERSION, Event
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.ledger.transitions import snapshot
from services.scheduler.state.rules import Rules

SEGMENT_BYTES = 16 << 20
# Longest that the end of a scheduler waits for a segment to be packed.
PACK_S = 10.0
_ENCODER = msgspec.json.Encoder()


def history_of(config: RunConfig, directory: Path, ledger: Ledger) -> HistoryWriter | None:
    """The history that a run's scheduler writes; None if the run file wants none."""
    if not config.obs.history_bytes:
        return None
    # Engines that sleep while the trainer works stop the time of episodes.
    rules = replace(ledger.rules, episode_s=0.0) if config.alternates else ledger.rules
    return HistoryWriter(directory, config.name, rules, ledger.tables, config.obs.history_bytes)


class HistoryWriter:
    """The history of one run, as this scheduler continues it.

    directory: the run's. rules: staleness bounds versions, and episode_s leases unless it is 0. most_bytes:
    of all segments, after which the oldest go; one is always kept. A disk that is full leaves a gap, which
    the checker reports.
    """

    def __init__(
        self, directory: Path, run: str, rules: Rules, tables: LedgerTables, most_bytes: int,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:  # fmt: skip
        self._folder, self._run, self._tables = directory / FOLDER, run, tables
        self._most_bytes, self._segment_bytes = most_bytes, segment_bytes
        self._rules = {
            "staleness": rules.staleness,
            "lease_s": rules.lease_s,
            "episode_s": rules.episode_s,
        }
        self._expendable = ExpendableFile(self._folder)
        self._file: FileIO | None = None
        self._number = 0
        self._size = 0
        self._packing: threading.Thread | None = None

    def begin(self, revision: int) -> None:
        """Begins a segment with the tables as they are; revision: of what is stored."""
        self._tables.log.take()  # the header has it
        self._next_segment(revision, took_over=True)

    def record(self, revision: int, events: Sequence[Event]) -> None:
        """Writes the round that makes this revision of the stored ledger."""
        self._write({"r": revision, "t": round(time.time(), 3), "e": events})
        if self._file is None or self._size >= self._segment_bytes:
            self._next_segment(revision)

    def close(self) -> None:
        """Ends the writing. A segment that is not packed within PACK_S stays as it is."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._packing is not None:
            self._packing.join(PACK_S)

    def _next_segment(self, revision: int, *, took_over: bool = False) -> None:
        """Ends the segment and begins another; where that fails none is open, and the next round tries."""
        if self._file is not None:
            self._file.close()
            self._file = None
        with self._expendable.written():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = max([0, *segment_files(self._folder)]) + 1
            header = {
                "history": VERSION,
                "segment": number,
                "run": self._run,
                "revision": revision,
                "took_over": took_over,
                "t": round(time.time(), 3),
                "rules": self._rules,
                "state": state_of(self._tables),
            }
            self._file, self._size = open_segment(
                self._folder / f"{number:06}{PLAIN}", _ENCODER.encode(header)
            )
            self._number = number
            self._pack()

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        with self._expendable.written():
            line = _ENCODER.encode(record) + b"\n"
            written = self._file.write(line) or 0
            self._size += written
            if written < len(line):  # the disk is full: the next line shall not continue this one
                self._file.write(b"\n")

    def _pack(self) -> None:
        """Packs the segments that are complete, and removes the oldest, in a thread of its own."""
        if self._packing is not None and self._packing.is_alive():
            return
        arguments = self._folder, self._number, self._most_bytes
        self._packing = threading.Thread(target=pack, args=arguments, name="history", daemon=True)
        self._packing.start()


def open_segment(path: Path, header: bytes) -> tuple[FileIO, int]:
    """A new segment with its header, open to be continued, and its bytes; no file is left if that fails.

    Raises OSError; FileExistsError where another scheduler was sooner.
    """
    file = path.open("xb", buffering=0)
    try:
        path.chmod(0o600)
        rest = memoryview(header + b"\n")
        while rest:
            rest = rest[file.write(rest) or 0 :]
    except OSError:
        file.close()
        path.unlink(missing_ok=True)
        raise
    return file, len(header) + 1


def state_of(tables: LedgerTables) -> dict[str, Any]:
    """The header's state of these tables."""
    run = tables.run
    return snapshot(
        tables.tickets.values(), tables.closed.items(), tables.batch, run.version, run.published, run.fence,
        run.next_ticket,
    )  # fmt: skip


def pack(folder: Path, newest: int, most_bytes: int) -> None:
    """Packs all segments but the newest; then removes the oldest until all together are small enough."""
    expendable = ExpendableFile(folder)
    for number, path in segment_files(folder).items():
        if number >= newest or path.name.endswith(PACKED):
            continue
        with expendable.written():
            packed = path.with_name(f"{number:06}{PACKED}")
            scratch = packed.with_name(f".{packed.name}.{os.getpid()}")
            with path.open("rb") as source, gzip.open(scratch, "wb", compresslevel=6) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            scratch.chmod(0o600)
            scratch.replace(packed)
            path.unlink()
    with expendable.written():
        files = list(segment_files(folder).values())
        total = sum(path.stat().st_size for path in files)
        for path in files[:-1]:
            if total <= most_bytes:
                break
            total -= path.stat().st_size
            path.unlink()
