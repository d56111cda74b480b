"""Values of options and arguments that are taken without typer's conversion: the same as with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command

from earl.cli.lib.plain_values import take_plain_values


def doubled(text: str | None) -> str | None:
    return text and text * 2


def command_of(*, plain: bool, seen: list[dict[str, Any]]) -> Any:
    app = typer.Typer(add_completion=False)

    @app.command()
    def run(
        word: str,
        place: Annotated[Path | None, typer.Argument()] = None,
        there: Annotated[Path | None, typer.Option(exists=True)] = None,
        count: int = 3,
        share: Annotated[float, typer.Option(min=0, max=1)] = 0.5,
        name: str = "x",
        twice: Annotated[str | None, typer.Option(callback=doubled)] = None,
        several: Annotated[list[str] | None, typer.Option()] = None,
        parsed: Annotated[str, typer.Option(parser=str.upper)] = "a",
        flag: bool = False,
    ) -> None:
        seen.append(dict(locals()))

    command = get_command(app)
    if plain:
        take_plain_values(command)
    return command


def outcome(arguments: list[str], *, plain: bool) -> Any:
    seen: list[dict[str, Any]] = []
    try:
        command_of(plain=plain, seen=seen)(arguments, standalone_mode=False)
    except typer.TyperException as error:
        return type(error), error.format_message()
    return [{name: value for name, value in values.items() if name != "seen"} for values in seen]


@pytest.mark.parametrize(
    "arguments",
    [
        ["a"],
        ["a", "b/c", "--name", "", "--flag"],
        ["", "."],
        ["a", "--there", "."],
        ["a", "--there", "nowhere"],
        ["a", "--count", "5", "--share", "0.25"],
        ["a", "--count", "five"],
        ["a", "--share", "2"],
        ["a", "--twice", "b"],
        ["a", "--several", "b", "--several", "c"],
        ["a", "--parsed", "b"],
        [],
    ],
)
def test_values_and_refusals_are_those_of_typer(arguments: list[str], tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    assert outcome(arguments, plain=True) == outcome(arguments, plain=False) != []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_path_that_cannot_be_read_is_refused_as_typer_does(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.touch(mode=0o000)
    refusal = outcome(["a", str(secret)], plain=True)
    assert refusal == outcome(["a", str(secret)], plain=False)
    assert "is not readable" in refusal[1]
