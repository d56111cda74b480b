"""`earl train` and `earl resume` on a terminal: a command that is refused draws no screen."""

from __future__ import annotations

import io
import socket
from pathlib import Path

import pytest

from earl.cli.run.view import open_view
from earl.stack.status import ProcessState, RunStatus
from tests.support.refused import wrong_folder
from tests.support.terminal import on_terminal


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the command is typed."""
    monkeypatch.chdir(tmp_path)
    return wrong_folder(tmp_path)


def test_a_run_that_exists_is_an_error_without_an_empty_box(here: Path, monkeypatch: pytest.MonkeyPatch):
    remedy = "continue it with: earl resume runs/t1, or start another with --name NAME"
    assert on_terminal("train ok.toml --name t1", monkeypatch) == (
        2,
        f"earl: error: run directory runs/t1 exists already; {remedy}\n",
    )


def test_a_port_that_is_taken_is_an_error_without_an_empty_box(here: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        code, screen = on_terminal(f"train ok.toml --scheduler.bind {address}", monkeypatch)
    *notes, error = screen.splitlines()
    assert code == 5 and error.startswith(f'earl: error: scheduler.bind = "{address}" cannot be used')
    assert all(note.startswith("earl: ") for note in notes) and "\x1b" not in screen


class Screen(io.StringIO):
    """A terminal that keeps what is written to it."""

    def isatty(self) -> bool:
        return True


def test_a_screen_begins_with_the_first_status(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen()
    with open_view(plain=False, file=screen) as view:
        assert screen.getvalue() == ""
        view.update([ProcessState("gateway", "starting", 1.0, 0)], RunStatus(run="first"))
    assert "first" in screen.getvalue() and "gateway" in screen.getvalue()
