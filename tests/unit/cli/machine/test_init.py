"""`earl init`: a project, or a copy of an example under another name."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from earl.cli.machine.init import app, example_text
from earl.config.load import load_run
from earl.errors import ConfigError


def test_an_example_is_copied_under_the_files_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["first.toml", "--example", "tictactoe"])
    assert done.exit_code == 0 and "earl train first.toml" in done.stdout
    assert load_run(Path("first.toml")).name == "first"
    assert Path("first.toml").read_text().splitlines()[3:] == example_text("tictactoe.toml").splitlines()[3:]


def test_nothing_is_overwritten_and_examples_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("first.toml").write_text("mine")
    done = CliRunner().invoke(app, ["first", "--example", "tictactoe"])
    assert isinstance(done.exception, ConfigError) and "first.toml exists already" in str(done.exception)
    assert Path("first.toml").read_text() == "mine"
    done = CliRunner().invoke(app, ["second", "--example", "chess"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith("there is no example 'chess'; give one of connect_four, ")


def test_without_an_example_it_is_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["word-guess"]).exit_code == 0
    assert load_run(tmp_path / "word-guess" / "run.toml").name == "word-guess"
