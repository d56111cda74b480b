"""A command that waits says so again and again, and stops when it is done."""

from __future__ import annotations

import io
import itertools
import threading
from types import SimpleNamespace

import pytest

from earl.cli.lib import notices
from earl.cli.lib.notices import notice, repeating, waiting


class Heard(io.StringIO):
    """Sets `often` once so many lines were written."""

    def __init__(self, lines: int) -> None:
        super().__init__()
        self.often = threading.Event()
        self._lines = lines

    def flush(self) -> None:
        if self.getvalue().count("\n") >= self._lines:
            self.often.set()


def test_it_is_said_again_and_again_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "time", SimpleNamespace(monotonic=lambda: 100.0))
    heard = Heard(3)
    with waiting("writing model", 60.0, every_s=0.001, file=heard):
        assert heard.often.wait(20.0)
    lines = heard.getvalue().splitlines()
    assert len(lines) >= 3 and set(lines) == {"writing model: 0 of at most 60 s"}
    assert heard.getvalue() == "\n".join(lines) + "\n"


def test_what_is_done_at_once_says_nothing() -> None:
    heard = Heard(1)
    with waiting("writing model", every_s=60.0, file=heard):
        pass
    assert not heard.getvalue()


def test_a_notice_without_a_bound() -> None:
    assert notice("waiting for trainer", 12.3) == "waiting for trainer: 12 s"


def test_a_notice_of_what_is_counted_says_how_far_and_how_long_still() -> None:
    assert notice("leaks", 12.0, 300.0, 240, 1000) == "leaks: 240 of 1,000 in 12 s, about 38 s left"
    assert notice("leaks", 280.0, 300.0, 240, 1000) == "leaks: 240 of 1,000 in 280 s, about 20 s left"
    assert notice("leaks", 6.0, 300.0, 0, 1000) == "leaks: 0 of 1,000 in 6 s, at most 294 s left"
    assert notice("leaks", 6.0, 0.0, 0, 1000) == "leaks: 0 of 1,000 in 6 s"
    assert notice("leaks", 6.0, 0.0, 1000, 1000) == "leaks: 6 s"
    heard = Heard(1)
    with waiting("leaks", progress=lambda: (1, 2), every_s=0.001, file=heard):
        assert heard.often.wait(20.0)
    assert heard.getvalue().startswith("leaks: 1 of 2 in 0 s, about 0 s left\n")


def test_the_time_left_counts_from_the_end_of_the_last_item() -> None:
    """A seed takes 600 s: in the middle of the second of three, half of it and the third are left."""
    assert notice("seeds", 900.0, 0.0, 1, 3, 600.0) == "seeds: 1 of 3 in 900 s, about 900 s left"
    assert notice("seeds", 9000.0, 0.0, 1, 3, 600.0) == "seeds: 1 of 3 in 9000 s, about 0 s left"


def test_notices_of_a_block_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(100.0, 10.0)
    monkeypatch.setattr(notices, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    heard = Heard(3)
    steps = itertools.chain([(0, 3), (1, 3)], itertools.repeat((1, 3)))
    with waiting("points", progress=lambda: next(steps), every_s=0.001, file=heard):
        assert heard.often.wait(20.0)
    assert heard.getvalue().splitlines()[:3] == [
        "points: 0 of 3 in 10 s",
        "points: 1 of 3 in 20 s, about 40 s left",
        "points: 1 of 3 in 30 s, about 30 s left",
    ]


def test_nothing_is_written_where_there_is_nothing_to_say() -> None:
    heard, lines = Heard(1), iter(["", "", "said"])
    with repeating(lambda: next(lines, ""), every_s=0.001, file=heard):
        assert heard.often.wait(20.0)
    assert heard.getvalue() == "said\n"
