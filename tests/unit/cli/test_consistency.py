"""Checks what holds of every command and error: examples that parse, --json, exit codes, remedies."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from earl.cli.lib.lazy import Commands, commands_of, load
from earl.cli.show.status import EXIT_CODES
from earl.errors import EarlError
from earl.rpc.errors import catalogue
from tests.support.paths import ROOT
from tests.unit.cli.run.test_commands import earl

CLI = (ROOT / "docs" / "cli.md").read_text()
# A screen, a game, files, processes: nothing that a program would read.
WITHOUT_JSON = {
    "top", "dashboard", "chat", "init", "env new", "env play", "env serve",
    "certs add", "certs new", "certs renew", "tokens new", "tokens rotate", "tokens show",
}  # fmt: skip


def commands() -> Iterator[tuple[str, Any]]:
    """(name, command) of each that does something, those below `earl bench` left out."""
    for name, point in sorted(commands_of("earl.commands").items()):
        command = get_command(load(point))
        if name == "bench":
            continue
        if not isinstance(command, TyperGroup) or command.invoke_without_command:
            yield name, command
        if isinstance(command, TyperGroup):
            yield from ((f"{name} {one}", below) for one, below in sorted(command.commands.items()))


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_an_example_that_parses_and_json(name: str):
    command = COMMANDS[name]
    example = str(command.epilog or "").partition("|")[0].partition("Example: ")[2]
    words = shlex.split(re.sub(r"\.\s.*", "", example))
    assert words[: 1 + name.count(" ") + 1] == ["earl", *name.split()], command.epilog
    with command.make_context(name, words[2 + name.count(" ") :]) as context:
        assert not context.args
    options = [option for parameter in command.params for option in parameter.opts]
    assert ("--json" in options) != (name in WITHOUT_JSON), name


@pytest.mark.parametrize("name", COMMANDS)
def test_the_documentation_names_every_command(name: str):
    first, *rest = name.split()
    assert f"`earl {first}" in CLI and all(word in CLI for word in rest)


def test_every_command_of_the_panels_is_in_one_of_them():
    named = [name for names in Commands.panels.values() for name in names]
    assert len(named) == len(set(named))
    assert commands_of("earl.commands").keys() <= set(named)


@pytest.mark.slow
def test_the_shell_completes_commands_runs_processes_and_environments(tmp_path: Path):
    run = tmp_path / "runs" / "first"
    (run / "logs").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    (run / "logs" / "trainer.log").touch()

    def completed(words: str) -> list[str]:
        given = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        done = subprocess.run(
            [sys.executable, "-m", "earl.cli.main"], capture_output=True, text=True, check=False, timeout=60,
            cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "_EARL_COMPLETE": "complete_bash", **given},
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.split()

    assert completed("earl dem") == ["demo"]
    assert completed("earl report ") == ["runs/first"]
    assert completed("earl logs ") == ["runs/first", "trainer"]
    assert completed("earl train x.toml --trainer.lr 1 --res") == ["--resume"]
    assert "earl.env.adapters.relay:environments" in completed("earl env play earl.env.adapters.re")
    assert completed("earl env play earl.env.adapters.relay:environments ") == [
        "relay/digits",
        "relay/penalised",
        "relay/recite",
    ]


def test_help_is_grouped_and_offers_completion():
    said = earl("--help", COLUMNS="100").stdout
    assert [said.index(f"─ {panel} ─") for panel in Commands.panels] == sorted(
        said.index(f"─ {panel} ─") for panel in Commands.panels
    )
    assert "--install-completion" in said and said.lstrip().startswith("Usage: earl ")


# --- errors ---------------------------------------------------------------------------------


def documented() -> dict[int, set[str]]:
    """Errors by code, of the table in docs/cli.md."""
    rows = re.findall(r"^\| (\d+) \| ([^|]*) \|", CLI, re.MULTILINE)
    return {
        int(code): set(re.findall(r"`(\w+)`", names)) for code, names in rows if "`" in names or code in "0"
    }


def owns_code(kind: type[EarlError]) -> bool:
    """Returns whether an error has an exit code that the error it derives from has not."""
    return kind is EarlError or kind.exit_code != getattr(kind.__base__, "exit_code", None)


def test_exit_codes_and_their_table_are_the_same():
    kinds = [kind for kind in catalogue().values() if kind.__module__ == "earl.errors"]
    table = documented()
    codes = {kind.exit_code for kind in kinds}
    assert codes == table.keys() - {0}
    for code in codes:
        owners = {kind.__name__ for kind in kinds if kind.exit_code == code and owns_code(kind)}
        assert owners == table[code], code
    states = re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \| (\d+) \|", CLI, re.MULTILINE)
    assert {name: int(code) for *names, code in states for name in names if name} == {
        state.value: code for state, code in EXIT_CODES.items()
    }


def raised(*folders: str) -> Iterator[tuple[str, str, ast.Call]]:
    """(file, name of the error, call) of every `raise NAME(...)`."""
    for path in sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                yield path.relative_to(ROOT).as_posix(), call.func.id, call


# Said to whoever wrote an environment, or to the agent that plays in it: what to do is the message itself.
WITHOUT_REMEDY = {
    "EnvProtocolError", "EnvironmentFailure", "EnvBackendLost", "EnvironmentCrashed", "ToolError",
    "EngineError",
}  # fmt: skip
# What a person would be shown as a traceback.
UNTYPED = {
    "AssertionError", "Exception", "KeyError", "OSError", "RuntimeError", "TimeoutError", "TypeError",
    "ValueError",
}  # fmt: skip
MAY_BE_UNTYPED = {
    "benchmarks/gateway/environment.py": "an environment that fails as one of somebody else's would",
}


def test_every_error_says_what_to_do():
    kinds = {kind.__name__ for kind in catalogue().values()} - WITHOUT_REMEDY
    calls = [one for one in raised("earl", "services", "benchmarks") if one[1] in kinds]
    assert len(calls) > 300
    silent = [
        f"{path}:{call.lineno}"
        for path, _, call in calls
        if len(call.args) + len(call.keywords) < 2 and not any(isinstance(a, ast.Starred) for a in call.args)
    ]
    assert silent == []


def test_commands_and_benchmarks_raise_errors_of_the_catalogue():
    untyped = [
        (path, f"{path}:{call.lineno} {name}")
        for path, name, call in raised("benchmarks", "earl/cli")
        if name in UNTYPED
    ]
    assert [place for path, place in untyped if path not in MAY_BE_UNTYPED] == []
    assert {path for path, _ in untyped} == MAY_BE_UNTYPED.keys()
