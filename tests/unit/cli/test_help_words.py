"""The help of every command in words, and commands that people know from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from earl.cli.lib.help_words import word_parameters
from earl.cli.lib.lazy import Commands, commands_of
from earl.cli.main import app
from earl.errors import ConfigError
from tests.unit.cli.test_consistency import COMMANDS

# Python's types, as typer writes them, and its brackets around a name that has its own.
TYPES = re.compile(r"<[a-z]|\[\[|\{|range")


def texts(command: Any) -> list[str]:
    """Returns the usage of a command, and the name and value of each of its parameters."""
    with command.make_context("x", [], resilient_parsing=True) as ctx:
        records = [parameter.get_help_record(ctx) for parameter in command.get_params(ctx)]
        values = [parameter.display_type_rich(ctx) or "" for parameter in command.get_params(ctx)]
        return [command.get_usage(ctx), *values, *(record[0] for record in records if record is not None)]


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_has_types(name: str):
    command = COMMANDS[name]
    word_parameters(command)
    shown = texts(command)
    assert not [text for text in shown if TYPES.search(text)], shown


def test_values_are_words():
    example = typer.Typer()

    @example.command()
    def show(many: list[str], last: int = 0, share: float = 0.0, quiet: bool = False, to: Path = Path()):
        """Shows."""

    command = get_command(example)
    word_parameters(command)
    usage, *shown = texts(command)
    assert usage == "Usage: x [OPTIONS] MANY..."
    for text in ("MANY...", "--last N", "--share NUMBER", "--quiet / --no-quiet", "--to PATH"):
        assert text in shown


@pytest.mark.parametrize(("word", "meant"), [("ps", "ls"), ("kill", "stop"), ("gc", "rm"), ("list", "ls")])
def test_commands_of_other_tools_are_answered_with_the_right_one(word: str, meant: str):
    done = CliRunner().invoke(app, [word, "first"], prog_name="earl")
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"there is no command earl {word}; did you mean earl {meant}?"


def test_every_proposed_command_is_there():
    assert set(Commands.elsewhere.values()) <= commands_of("earl.commands").keys()
    assert not set(Commands.elsewhere) & commands_of("earl.commands").keys()


@pytest.mark.parametrize(
    ("words", "command"),
    [(["ps"], None), (["help"], None), (["nothing"], None), (["help", "stop"], "stop"), (["ls"], "ls")],
)
def test_words_that_are_no_command_do_not_disturb_completion(words: list[str], command: str | None):
    root = get_command(app)
    with root.make_context("earl", list(words), resilient_parsing=True) as ctx:
        name, found, _ = root.resolve_command(ctx, words)  # type: ignore[attr-defined]
    assert name == command and (found is None) == (command is None)


def test_help_is_a_command_too():
    runner = CliRunner()
    whole = runner.invoke(app, ["help"], prog_name="earl")
    assert whole.exit_code == 0 and whole.stdout == runner.invoke(app, ["--help"], prog_name="earl").stdout
    of_stop = runner.invoke(app, ["help", "stop"], prog_name="earl")
    assert of_stop.exit_code == 0 and "Usage: earl stop [OPTIONS] [RUN]" in of_stop.stdout
    below = runner.invoke(app, ["help", "parallelism", "pin"], prog_name="earl")
    assert below.exit_code == 0 and "STAGE" in below.stdout
    for done in (whole, of_stop, below):
        assert not TYPES.search(done.stdout)
