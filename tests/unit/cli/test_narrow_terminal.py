"""`earl explain`, `compare`, `config keys` and `doctor` at 60 columns: every word stays whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from earl.cli.compare.command import below_each_other
from earl.cli.lib.wrapped import wrapped
from earl.cli.machine.doctor import BY_HAND, fitted, lines
from earl.cli.machine.findings import Finding
from tests.support.refused import wrong_folder
from tests.support.terminal import on_terminal, without_colours

COLUMNS = 60


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the command is typed."""
    monkeypatch.chdir(tmp_path)
    return wrong_folder(tmp_path)


def shown(line: str, monkeypatch: pytest.MonkeyPatch, columns: int = COLUMNS) -> str:
    code, text = on_terminal(line, monkeypatch, columns)
    assert code == 0, text
    return without_colours(text)


def is_whole(narrow: str, wide: str, longest: int = COLUMNS) -> None:
    """Every word of the wide output stands in the narrow one, whose lines fit but for longer words."""
    assert set(wide.split()) <= set(narrow.split()), set(wide.split()) - set(narrow.split())
    too_long = [line for line in narrow.splitlines() if len(line.rstrip()) > longest]
    assert all(len(line.split()) == 1 for line in too_long), too_long


@pytest.mark.parametrize("line", ["explain t1", "explain t1 --step 5", "config keys trainer"])
def test_text_is_wrapped_between_words(line: str, here: Path, monkeypatch: pytest.MonkeyPatch):
    is_whole(shown(line, monkeypatch), shown(line, monkeypatch, 1000))


@pytest.mark.parametrize("others", [["t2"], ["t2", "t3"], ["a-run-that-has-a-long-name-as-many-have"]])
def test_runs_are_compared_in_whole_words(others: list[str], here: Path, monkeypatch: pytest.MonkeyPatch):
    for name in others:
        shutil.copytree(here / "runs" / "t1", here / "runs" / name)
    line = " ".join(["compare", "t1", *others])
    narrow, wide = (shown(line, monkeypatch, columns).replace("(", " ") for columns in (COLUMNS, 1000))
    assert set(wide.split()) - {"÷"} <= set(narrow.split())
    assert max(map(len, narrow.splitlines())) <= COLUMNS and "…" not in narrow


def test_a_narrow_comparison_has_a_line_for_each_run():
    rows = [["training steps", "24", "20", "0.83", "", ""], ["switches", "0", "1", "", "2", ""]]
    assert list(below_each_other(["t1", "second", "t3"], rows)) == [
        "training steps",
        "  t1      24",
        "  second  20  (0.83 x t1)",
        "  t3      ",
        "switches",
        "  t1      0",
        "  second  1",
        "  t3      2",
    ]


def test_a_finding_of_the_machine_is_wrapped_below_itself():
    machine_text = "31 GiB of memory, 2 cores, of which another process uses one and a half"
    finding = Finding(
        "memory", True, True, machine_text, "give the run a machine of its own, or wait until it is free"
    )
    assert list(fitted(finding, COLUMNS)) == [
        "ok  memory           31 GiB of memory, 2 cores, of which",
        "                     another process uses one and a half",
        "                     -> give the run a machine of its own,",
        "                        or wait until it is free",
    ]
    assert list(fitted(finding, 0)) == list(lines(finding))


def test_a_command_to_be_typed_is_not_wrapped():
    command = 'printf %s \'{"wire": "ucx", "wired": true, "arena": 1}\' | python -m earl.dispatch.probe ucx'
    finding = Finding("ucx", False, True, "its probe did not end", f"{BY_HAND}{command}")
    assert list(fitted(finding, COLUMNS))[1:] == [f"{'':21}-> {BY_HAND}".rstrip(), command]
    assert list(fitted(finding, 0))[1] == f"{'':21}-> {BY_HAND}{command}"


def test_a_word_that_is_too_long_stays_whole():
    word = "runs/" + "x" * 70
    assert wrapped(f"  it is in {word} now", COLUMNS) == ["  it is in", f"    {word}", "    now"]
