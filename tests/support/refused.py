"""Refused commands: a folder of wrong files and runs in which to type them, and the one line of a refusal."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from earl.cli.main import main
from tests.support.paths import ROOT
from tests.support.recorded import recorded

FILES = {
    "no_value.toml": "name = \n",
    "no_bracket.toml": 'name = "x"\n[trainer\nlr=1\n',
    "three.toml": 'name="x"\n[environment]\nname="e"\n[trainer]\nlrr=1\nlr="a"\n[nope]\nx=1\n',
    "empty.toml": "",
    "parent.toml": 'name="../x"\n[environment]\nname="e"\n',
    "two.toml": 'name="x"\n[environment]\nname="e"\n[trainer]\nlr=-1\n[scheduler]\ngroup_size=0\n',
    "text.toml": 'name="x"\n[environment]\nname="e"\n[scheduler]\nsteps="many"\n',
    "ok.toml": (ROOT / "examples" / "tictactoe.toml").read_text(),
}


def wrong_folder(folder: Path) -> Path:
    """Fills a folder with wrong run files, one that is right (ok.toml), and the runs t1 (which has no
    checkpoint), hollow and broken.
    """
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "binary.toml").write_bytes(b"\xff\xfe")
    (folder / "folder.toml").mkdir()
    for name in ("t1", "hollow", "broken"):
        (folder / "runs" / name).mkdir(parents=True)
    recorded(folder / "runs" / "t1")
    (folder / "runs" / "broken" / "run.json").write_text('{"name":')
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def refused(
    line: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    """The exit code and the one line of a command that is refused: it prints nothing else, changes no file.

    line: the command without `earl`. here: the working directory.
    """
    before = contents(here)
    monkeypatch.setattr(sys, "argv", ["earl", *line.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("earl: error: ") and err.endswith("\n") and err.count("\n") == 1
    assert contents(here) == before
    return ended.value.code, err.removeprefix("earl: error: ").rstrip("\n")


def fits(expected: str) -> re.Pattern[str]:
    """Matches the expected text, with any text for "…"."""
    return re.compile(".*".join(map(re.escape, expected.split("…"))))
