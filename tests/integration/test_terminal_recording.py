"""A session of a terminal is typed, watched and written down: a real bash on a real pseudo-terminal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.film import animated, needs_nothing, still
from tools.terminal_film import caption, drawn
from tools.terminal_recording import Step, recorded

# It answers a key from the screen that programs like `earl top` have.
ASKS = r"printf '\033[?1049h\033[Hpress it\n'; read -rsn1 key; printf '\033[?1049l'; echo got $key"
# Nobody watches: what a command said is looked at as briefly as keys take.
SIZE: dict[str, Any] = {"columns": 60, "lines": 10, "shown_s": 0.05}


def test_a_session_becomes_a_film_of_what_was_typed_and_said(tmp_path: Path) -> None:
    (tmp_path / "ask.sh").write_text(ASKS)
    cast = recorded(
        [Step("echo hello | tr a-z A-Z"), Step(". ./ask.sh", until="press it", press="q", speed=4)],
        tmp_path,
        **SIZE,
    )
    times = [event.at_s for event in cast.events]
    assert times == sorted(times)
    said = "".join(event.text for event in cast.events if event.kind == "o")
    assert "HELLO" in said and "press it" in said
    svg = drawn(cast)
    needs_nothing(svg)
    assert animated(svg) > 3
    # Keys came one after the other, and what had covered the screen is gone.
    assert still(svg)[:5] == ["$ echo hello | tr a-z A-Z", "HELLO", "$ . ./ask.sh", "got q", "$"]
    assert ". ./ask.sh is shown 4 times as fast" in caption(cast)


@pytest.mark.slow
def test_a_command_that_fails_or_shows_nothing_ends_the_recording_and_the_shell(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="'false' ended with 'ended 1'"):
        recorded([Step("false"), Step("touch never")], tmp_path, **SIZE)
    assert not (tmp_path / "never").exists()
    with pytest.raises(TimeoutError, match=r"(?s)not within 10 s. The screen:.*waiting"):
        recorded([Step("echo $$ >pid; echo wai''ting; read -r never", bound_s=10)], tmp_path, **SIZE)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    with pytest.raises(EOFError):
        recorded([Step("exit")], tmp_path, **SIZE)


def test_the_shell_knows_the_session_alone(tmp_path: Path) -> None:
    """Neither start-up files nor a history, in the directory that it was given."""
    (tmp_path / ".bashrc").write_text("echo mine")
    cast = recorded([Step('echo "$PWD" >where; echo "$HOME" >home')], tmp_path, **SIZE)
    assert (
        (tmp_path / "where").read_text().strip() == (tmp_path / "home").read_text().strip() == str(tmp_path)
    )
    assert "mine" not in "".join(event.text for event in cast.events)
    with pytest.raises(ValueError, match="the terminal shows"):
        recorded([Step("pwd")], tmp_path, **SIZE).refuse([str(tmp_path)])
