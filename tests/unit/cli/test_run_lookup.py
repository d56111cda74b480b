"""How a run is named on the command line: every command about one finds it in the same way."""

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
    ],
)
def test_a_run_may_stand_before_what_is_done_to_its_stages(typed: list[str], read: list[str]):
    assert parallelism.run_as_option(typed, {"set", "pin", "unpin"}) == read


def test_the_named_run_is_the_one_that_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for words in (["other"], ["other", "pin", "trainer"], ["pin", "trainer", "--run", "other"]):
        done = CliRunner().invoke(parallelism.app, words)
        assert isinstance(done.exception, ConfigError) and "there is no run 'other'" in str(done.exception)


def test_the_examples_of_the_docstrings_come_out():
    assert doctest.testmod(parallelism) == (0, 2)
