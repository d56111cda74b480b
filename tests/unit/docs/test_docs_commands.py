"""Every command of the documentation is executed somewhere, or says why not; each one, and each example of
`--help`, names commands, options, run-file keys and files that there are."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from earl.cli.lib.lazy import commands_of, load
from earl.cli.run.launch import OverridableCommand
from earl.config.keys import field_of, free_table_above
from tests.integration.test_documented_commands import PLACEHOLDERS, SCENARIOS
from tests.support.documented import (
    NOT_EXECUTED,
    PROGRAMS,
    ROOT,
    SPOKEN,
    Command,
    commands,
    inline,
    pages,
    spoken,
)

FOLLOWED = {page for together in SCENARIOS for page in together}
COMPLETION = {"--help", "--install-completion"}


def where(command: Command) -> str:
    return f"{command.page}:{command.line}"


def fenced() -> list[Command]:
    return commands()


# --- executed, or not -----------------------------------------------------------------------


def forgotten(command: Command) -> str:
    """Returns what to do about a command that nothing executes; "" if something does, or cannot."""
    if command.program not in PROGRAMS:
        return (
            f"{where(command)} has `{command.text}` in a block without a language, which holds commands: "
            "give the block one (```text, ```toml), or the program a place in PROGRAMS of "
            "tests/support/documented.py"
        )
    if command.page in FOLLOWED or command.text in NOT_EXECUTED.get(command.page, {}):
        return ""
    return (
        f"{where(command)} has `{command.text}`, which no test executes: follow the page in SCENARIOS of "
        "tests/integration/test_documented_commands.py, or write into NOT_EXECUTED of "
        "tests/support/documented.py why that cannot be"
    )


@pytest.mark.parametrize("command", fenced(), ids=where)
def test_a_command_is_executed_as_written_or_says_why_not(command: Command):
    assert not forgotten(command), forgotten(command)


def unsaid(command: Command) -> str:
    """Returns what to do about a command of another program that stands between words; "" if nothing."""
    program, *rest = command.text.split()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    if program == "make" and rest[0] in targets:
        return ""
    if any(one.text.startswith(command.text) for one in fenced()):
        return ""
    if command.text in SPOKEN.get(command.page, {}):
        return ""
    return (
        f"{where(command)} has `{command.text}` between words: give it a block, which a test executes, or "
        "write into SPOKEN of tests/support/documented.py why that cannot be"
    )


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_sentence_has_of_other_programs_says_why_it_is_not_executed(page: Path):
    assert [said for command in spoken(page) if (said := unsaid(command))] == []


def test_what_is_not_in_the_inventory_is_found():
    for text in ("kubectl get pods", "make coffee", "ssh -L 1:2:3 host"):
        assert "SPOKEN" in unsaid(Command("docs/new.md", 3, text))
    assert not unsaid(Command("docs/new.md", 3, "make setup-envs"))
    there = {path.relative_to(ROOT).as_posix(): {one.text for one in spoken(path)} for path in pages()}
    for page, reasons in SPOKEN.items():
        assert not reasons.keys() - there[page], f"SPOKEN has what {page} does not: take it out"


def test_a_new_command_or_page_says_what_is_to_be_done():
    assert "SCENARIOS" in forgotten(Command("docs/new.md", 3, "earl status"))
    assert "NOT_EXECUTED" in forgotten(Command("docs/deploy.md", 3, "kubectl get pods"))
    assert "PROGRAMS" in forgotten(Command("docs/quickstart.md", 3, "helm install earl"))
    assert not forgotten(Command("docs/quickstart.md", 3, "earl version"))


def test_what_is_not_executed_or_stands_for_something_else_is_still_documented():
    for page, reasons in NOT_EXECUTED.items():
        there = {command.text for command in commands(page)}
        assert not reasons.keys() - there, f"NOT_EXECUTED has what {page} does not: take it out"
        assert all(reasons.values())
    for page, stand_ins in PLACEHOLDERS.items():
        text = "\n".join(command.text for command in commands(page))
        assert all(placeholder in text for placeholder in stand_ins), f"PLACEHOLDERS of {page}"
    for page in FOLLOWED:
        assert {command.text for command in commands(page)} - NOT_EXECUTED.get(page, {}).keys(), page


def test_the_reasons_name_tests_that_there_are():
    inventories = (*NOT_EXECUTED.values(), *SPOKEN.values())
    reasons = " ".join(reason for found in inventories for reason in found.values())
    for path in re.findall(r"tests/[a-z_/.]+|\.ci/run", reasons):
        assert (ROOT / path).exists(), path


def test_wrapped_lines_comments_and_languages_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = tmp_path / "page.md"
    page.write_text(
        "```toml\n[x]\n```\n```\n# a remark\nearl up a.toml   # go\n        # on\nA=1 B=2 \\\n    earl stop\n"
        "python -m x |\n    y --run F\n```\n```\nearl top\n```\n"
    )
    monkeypatch.setattr("tests.support.documented.ROOT", tmp_path)
    from tests.support.documented import commands_of

    found = list(commands_of(page))
    assert [(one.line, one.program) for one in found] == [
        (6, "earl"),
        (8, "earl"),
        (10, "python"),
        (14, "earl"),
    ]
    assert [one.text for one in found[:3]] == [
        "earl up a.toml", "A=1 B=2 earl stop", "python -m x | y --run F"
    ]  # fmt: skip


# --- parsed ---------------------------------------------------------------------------------


def described(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words after `earl` call, and the words that are its own."""
    points = commands_of("earl.commands")
    name, *rest = words
    assert name in points, f"there is no `earl {name}`"
    if name == "bench" and rest:
        name, *rest = ["up" if word == "NAME" else word for word in rest]
        points = commands_of("earl.benchmarks")
        assert name in points, f"there is no `earl bench {name}`"
    command = get_command(load(points[name]))
    if isinstance(command, TyperGroup) and rest and rest[0] in command.commands:
        return command.commands[rest[0]], rest[1:]
    return command, rest


def strange(text: str) -> list[str]:
    """Returns what a call of `earl` names that is not there: options, keys of a run file, committed files."""
    plain = re.sub(r"[\[\]…]|\.\.\.|\\", " ", re.split(r"\s[|&>]", text)[0])
    words = shlex.split(plain.partition("earl ")[2])
    if not words or words[0].startswith("-"):
        return [word for word in words[:1] if word not in COMPLETION]
    command, rest = described(words)
    options = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    found = []
    for word in rest:
        option = word.partition("=")[0]
        key = option.removeprefix("--")
        if word.startswith("-") and "." in key and isinstance(command, OverridableCommand):
            known = field_of(key) is not None or free_table_above(key) or key == "section.key"
        elif word.startswith("-"):
            known = option in options
        else:
            made = not word.startswith(("examples/", "deploy/")) or "/secrets/" in f"{word}/"
            known = made or (ROOT / word).exists()
        found += [] if known else [word]
    return found


@pytest.mark.parametrize(
    "command",
    [one for one in fenced() if one.program.endswith("earl")]
    + [one for page in pages() for one in inline(page)],
    ids=lambda one: f"{one.page}:{one.line} {one.text}",
)
def test_a_documented_command_names_what_there_is(command: Command):
    assert strange(command.text) == [], f"{where(command)} has `{command.text}`"


def exemplified() -> Iterator[str]:
    """The examples of --help, of groups and benchmarks too."""
    for group in ("earl.commands", "earl.benchmarks"):
        for point in commands_of(group).values():
            command = get_command(load(point))
            below = command.commands.values() if isinstance(command, TyperGroup) else ()
            for one in (command, *below):
                if "Example: " in (epilog := str(one.epilog or "")):
                    yield re.sub(r"\.\s.*", "", epilog.partition("Example: ")[2])


@pytest.mark.parametrize("example", sorted(set(exemplified())))
def test_an_example_names_what_there_is(example: str):
    assert strange(example) == []


def test_what_is_not_there_is_found():
    assert strange("earl up RUN.toml [--name N] [--section.key VALUE ...] --trainer.lr 1") == []
    assert strange("earl up examples/none.toml --nam N --trainer.speed 1") == [
        "examples/none.toml", "--nam", "--trainer.speed"
    ]  # fmt: skip
    assert strange("earl bench up --repetition 3") == ["--repetition"] and strange("earl --halp") == [
        "--halp"
    ]
    with pytest.raises(AssertionError, match="no `earl bench nothing`"):
        strange("earl bench nothing")


def test_every_benchmark_is_in_the_table_of_its_page():
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", (ROOT / "docs" / "benchmarks.md").read_text(), re.MULTILINE)
    assert commands_of("earl.benchmarks").keys() <= set(rows)


def test_every_run_file_that_is_named_is_shipped():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = {path for paths in project["tool"]["setuptools"]["data-files"].values() for path in paths}
    assert all((ROOT / path).is_file() for path in shipped)
    texts = [path.read_text() for path in pages()] + list(exemplified())
    named = {name for text in texts for name in re.findall(r"examples/(?:selector/)?\w+\.(?:toml|csv)", text)}
    assert len(named) >= 8 and not named - shipped


def test_every_kind_of_result_has_a_row_in_its_readme():
    results = ROOT / "benchmarks" / "results"
    rows = re.findall(
        r"^\| `([a-z0-9-]+)-\*\.json` \| `earl bench ([a-z0-9-]+)", (results / "README.md").read_text(), re.M
    )
    names = {path.name for path in results.iterdir()} - {"README.md", "runs.jsonl"}
    strange = [name for name in names if not re.fullmatch(r"[a-z0-9_-]+-\d{8}-\d{6}(-\d+)?\.json", name)]
    assert strange == []
    assert [name for name in names if not any(name.startswith(f"{kind}-") for kind, _ in rows)] == []
    assert (
        all(kind == made_by for kind, made_by in rows)
        and {kind for kind, _ in rows} == commands_of("earl.benchmarks").keys()
    )
