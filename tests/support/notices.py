"""The notices of a command that waits: written at once, and with a clock that stands still."""

from __future__ import annotations

import io
import threading
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest

from earl.cli.lib import notices

LONGEST_S = 20.0


class HeardNotices(io.StringIO):
    """The stream of the notices. A test's work waits in `next_line`, as the real work would take its time."""

    def __init__(self) -> None:
        super().__init__()
        self._written = threading.Event()

    def flush(self) -> None:
        self._written.set()

    def next_line(self) -> str:
        """A notice that is written from now on."""
        self._written.clear()
        assert self._written.wait(LONGEST_S), "no notice"
        return self.getvalue().splitlines()[-1]


def heard_notices(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> HeardNotices:
    """The notices of `module`, which come all the time; every wait has lasted 0 s."""
    stream = HeardNotices()
    monkeypatch.setattr(notices, "time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr(module, "waiting", partial(notices.waiting, every_s=0.001, file=stream))
    return stream
