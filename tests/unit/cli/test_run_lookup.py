"""Checks how a run is named on the command line: every command about one finds it in the same way."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from typer.testing import CliRunner

from earl.cli.lib.find_run import NEWEST, RUNNING
from earl.cli.show import parallelism
from earl.errors import ConfigError
from tests.unit.cli.test_consistency import COMMANDS

# Commands about one run, by what they say of a run that is not named.
ABOUT_A_RUN = {
    **dict.fromkeys(("status", "top", "report", "trace", "sink", "explain", "resume", "dashboard", "export",
                     "eval", "chat", "logs"), NEWEST.rstrip(".")),
    **dict.fromkeys(("stop", "parallelism"), RUNNING),
}  # fmt: skip


@pytest.mark.parametrize("name", ABOUT_A_RUN)
def test_every_command_about_a_run_finds_it_alike(name: str):
    [parameter] = [
        parameter
        for parameter in COMMANDS[name].params
        if str(parameter.help or "").startswith(ABOUT_A_RUN[name])
    ]
    assert not parameter.required


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ([], []),
        (["first"], ["--run", "first"]),
        (["first", "--json"], ["--run", "first", "--json"]),
        (["--json", "first"], ["--json", "--run", "first"]),
        (["--run", "first", "pin", "trainer"], ["--run", "first", "pin", "trainer"]),
        (["set", "rollout", "tp=2"], ["set", "rollout", "tp=2"]),
        (["runs/first", "set", "rollout", "tp=2"], ["--run", "runs/first", "set", "rollout", "tp=2"]),
        (["st", "rollout", "tp=2"], ["st", "rollout", "tp=2"]),
        # Commands that were mistyped, or that only other programs have.
        (["pni"], ["pni"]),
        (["help"], ["help"]),
        (["missing", "pni"], ["missing", "pni"]),
        # Of a run that exists, the second word is the command that was mistyped.
        (["here", "pni"], ["--run", "here", "pni"]),
        (["reset"], ["--run", "reset"]),
        (["first", "--run", "other"], ["--run", "first", "--run", "other"]),
        (["--run", "other", "pin", "trainer"], ["--run", "other", "pin", "trainer"]),
        (["pin", "trainer", "--run", "other"], ["pin", "trainer", "--run", "other"]),
    ],
)
def test_a_run_may_stand_before_what_is_done_to_its_stages(typed: list[str], read: list[str]):
    exists = {"here", "reset"}.__contains__
    assert parallelism.run_as_option(typed, {"set", "pin", "unpin"}, exists) == read


def test_a_mistyped_command_is_named_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    for words, named in ((["pni"], "pni"), (["help"], "help"), (["first", "pni"], "pni")):
        done = CliRunner().invoke(parallelism.app, words)
        assert done.exit_code == 2 and f"No such command '{named}'" in done.output


def test_the_named_run_is_the_one_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for words in (["other"], ["other", "pin", "trainer"], ["pin", "trainer", "--run", "other"]):
        done = CliRunner().invoke(parallelism.app, words)
        assert isinstance(done.exception, ConfigError) and "there is no run 'other'" in str(done.exception)


def test_the_examples_of_the_docstrings_come_out():
    assert doctest.testmod(parallelism) == (0, 2)
