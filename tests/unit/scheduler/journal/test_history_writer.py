"""The writer of the run's history: headers, packed segments, the bound, a scheduler that takes over."""

from __future__ import annotations

import random
from io import FileIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from earl.history.check import check, segment_files
from services.scheduler.journal import history_writer
from services.scheduler.journal.history_writer import HistoryWriter
from tests.support.ledger import RULES, World


class WrittenWorld(World):
    """A world whose schedulers write their history into a directory."""

    directory: Path
    segment_bytes = 1 << 20
    most_bytes = 1 << 30

    def _begin_history(self) -> None:
        if hasattr(self, "written"):
            self.written.close()
        self.written = HistoryWriter(
            self.directory, "written", self.rules, self.ledger.tables, self.most_bytes, self.segment_bytes
        )
        self.written.begin(self.revision)

    def _write_history(self, changes) -> None:
        self.written.record(self.revision + 1, changes.history)

    def check_history(self):
        self.written.close()
        return check(self.directory)


def world(directory: Path, segment_bytes: int = 1 << 20, most_bytes: int = 1 << 30) -> WrittenWorld:
    WrittenWorld.directory = directory
    WrittenWorld.segment_bytes, WrittenWorld.most_bytes = segment_bytes, most_bytes
    made = WrittenWorld(random.Random(3), RULES)
    made.crash_chance = 0.02
    made.restart()
    made.wander(60)
    made.finish()
    return made


def test_a_run_of_several_schedulers_is_proven_from_its_files(tmp_path: Path):
    made = world(tmp_path)
    report = made.check_history()
    assert report.verdict == "proven", [*report.violations, *report.gaps]
    assert report.tickets == dict(sorted(made.ledger.tables.counts().items())) and report.segments > 2
    assert (tmp_path / "history").stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in segment_files(tmp_path / "history").values())


def test_full_segments_are_packed_and_the_next_one_continues_them(tmp_path: Path):
    report = world(tmp_path, segment_bytes=4000).check_history()
    assert report.verdict == "proven", [*report.violations, *report.gaps]
    *packed, _ = files = [path.name for path in segment_files(tmp_path / "history").values()]
    assert len(files) > 5 and sum(name.endswith(".gz") for name in packed) > 3


def test_the_oldest_segments_go_and_the_checker_names_them(tmp_path: Path):
    report = world(tmp_path, segment_bytes=4000, most_bytes=1000).check_history()
    assert report.verdict == "incomplete" and not report.violations
    assert "before it: missing" in report.gaps[0].text


def test_a_full_disk_leaves_a_gap_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = world(tmp_path)
    written = made.written

    def full(_: bytes) -> int:
        raise OSError(28, "No space left on device")

    made.restart()
    assert made.written._file is not None
    broken = type("Full", (), {"write": staticmethod(full), "close": made.written._file.close})()
    monkeypatch.setattr(made.written, "_file", broken)
    made.written.record(made.revision + 1, [["pending", 1]])
    monkeypatch.undo()
    made.written.record(made.revision + 2, [["pending", 2]])
    made.written.close()
    assert written is not made.written
    assert f"round {made.revision + 2} follows on round {made.revision}" in check(tmp_path).gaps[0].text


def test_a_segment_that_cannot_be_made_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = world(tmp_path)
    made.restart()
    written, revision = made.written, made.revision

    def full(path: Path, header: bytes) -> tuple[FileIO, int]:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(history_writer, "open_segment", full)
        patched.setattr(written, "_segment_bytes", 0)
        for number in (1, 2):
            written.record(revision + number, [])
    before = len(segment_files(tmp_path / "history"))
    written.record(revision + 3, [])
    written.record(revision + 4, [])
    written.close()
    report = check(tmp_path)
    assert len(segment_files(tmp_path / "history")) == before + 1
    assert [gap.text for gap in report.gaps] == [
        f"rounds {revision + 2} to {revision + 3} before it are missing"
    ]
    assert report.violations == [] and report.tickets == dict(sorted(made.ledger.tables.counts().items()))


@pytest.mark.parametrize("bytes_free", [0, 20])
def test_a_disk_that_is_full_for_a_header_leaves_no_segment(tmp_path: Path, bytes_free: int):
    path, calls = tmp_path / "000001.jsonl", iter([bytes_free])

    class Full(FileIO):
        def write(self, data: Any) -> int:
            if (free := next(calls, 0)) == 0:
                raise OSError(28, "No space left on device")
            return super().write(memoryview(data)[:free])

    with (
        pytest.raises(OSError, match="No space"),
        mock.patch.object(Path, "open", lambda self, *_, **__: Full(self, "x")),
    ):
        history_writer.open_segment(path, b"{}" * 40)
    assert not path.exists()
