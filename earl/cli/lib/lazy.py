"""A command group whose subcommands are entry points, imported only when called.

`earl --help` stays fast and imports no torch however heavy a subcommand is: its one line of help is
the first line of its module's docstring, read from the source, and the page is written by
`earl.cli.lib.help_page`, since typer's own imports all of rich.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, distribution
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from earl.cli.lib.help_page import Panel, help_page
from earl.cli.lib.help_words import word_parameters, worded
from earl.cli.lib.plain_values import take_plain_values, taking_plain_values
from earl.errors import ConfigError

MORE = "More"
# The distribution whose entry points are commands. Those of others are not looked for: that takes as long as
# the rest of `earl --help`.
DISTRIBUTION = "earl"
# The first line of a module's docstring, after comments.
FIRST_LINE = re.compile(r'(?:\s|#.*\n)*"""(?P<line>[^\n]*?)(?:"""|\n)')


class EntryPointGroup(TyperGroup):
    """Subclasses name the entry-point group; each entry point names a typer.Typer.

    panels: headings of the help and the commands below each, in this order; others are below MORE. aliases:
    former names of commands, which the help does not list. elsewhere: names that other tools have for a
    command, which is proposed for them.
    """

    entry_point_group = ""
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    aliases: ClassVar[Mapping[str, str]] = {}
    elsewhere: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Stand-ins that have the name; `resolve_command` brings the real ones.
        self.commands = {name: TyperCommand(name) for names in self._headed.values() for name in names}

    @cached_property
    def _headed(self) -> dict[str, list[str]]:
        """The names of all commands by their headings."""
        points = commands_of(self.entry_point_group)
        headed = {head: [name for name in names if name in points] for head, names in self.panels.items()}
        rest = points.keys() - {name for names in headed.values() for name in names}
        return {**headed, MORE if headed else "Commands": sorted(rest)}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        points = commands_of(self.entry_point_group)
        records = (param.get_help_record(ctx) for param in self.get_params(ctx))
        panels = [Panel("Options", [record for record in records if record is not None])]
        for head, names in self._headed.items():
            panels.append(Panel(head, [(name, first_line(points[name])) for name in names]))
        formatter.write(help_page(self.get_usage(ctx), self.help or "", panels, self.epilog or ""))

    def get_params(self, ctx: Any) -> list[Any]:
        return [taking_plain_values(worded(parameter, ctx)) for parameter in super().get_params(ctx)]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Finds and imports a command; (None, None, args) for none, where the shell asks for completions."""
        words = self._translated(ctx, args)
        name, _, rest = super().resolve_command(ctx, [self.aliases.get(words[0], words[0]), *words[1:]])
        if name is None:
            return None, None, rest
        point = commands_of(self.entry_point_group)[str(name)]
        command = get_command(load(point))
        command.name = name
        reflow(command)
        word_parameters(command)
        take_plain_values(command)
        return name, command, rest

    def _translated(self, ctx: Any, args: list[str]) -> list[str]:
        """Returns the arguments with `help COMMAND` as `COMMAND --help`; `help` alone shows the group's help.

        Raises ConfigError for a name that other tools have.
        """
        first, *rest = args
        if ctx.resilient_parsing:  # the shell asks for completions
            return rest if first == "help" and rest else args
        if first in self.elsewhere:
            path = ctx.command_path
            raise ConfigError(
                f"there is no command {path} {first}", f"did you mean {path} {self.elsewhere[first]}?"
            )
        if first != "help":
            return args
        if not rest:
            typer.echo(ctx.get_help())
            raise typer.Exit
        return [*rest, "--help"]


class Commands(EntryPointGroup):
    entry_point_group = "earl.commands"
    aliases: ClassVar[Mapping[str, str]] = {"down": "stop"}
    elsewhere: ClassVar[Mapping[str, str]] = {
        "ps": "ls",
        "list": "ls",
        "kill": "stop",
        "gc": "rm",
        "delete": "rm",
        "start": "up",
        "watch": "top",
    }
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Run": ("demo", "init", "train", "up", "stop", "resume", "rm", "parallelism"),
        "Model": ("eval", "chat", "export"),
        "Inspect": (
            "ls",
            "status",
            "top",
            "dashboard",
            "logs",
            "report",
            "compare",
            "explain",
            "trace",
            "check-history",
            "sink",
        ),
        "Environments": ("env",),
        "Measure": ("profile", "replay", "bench"),
        "Set up": ("config", "doctor", "tokens", "certs", "version"),
    }


class Benchmarks(EntryPointGroup):
    entry_point_group = "earl.benchmarks"


def reflow(command: Any) -> None:
    """Joins the lines of each paragraph of the help of a command and of those below it.

    Docstrings are wrapped for the source; a terminal has its own width.
    """
    if command.help:
        paragraphs = command.help.split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for below in getattr(command, "commands", {}).values():
        reflow(below)


@cache
def commands_of(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name."""
    return {point.name: point for point in distribution(DISTRIBUTION).entry_points.select(group=group)}


def load(point: EntryPoint) -> typer.Typer:
    """Imports what an entry point names; ConfigError if it cannot be, naming the extra it may lack."""
    try:
        app = point.load()
    except ImportError as error:
        raise ConfigError(
            f'command "{point.name}" cannot be loaded: {error}',
            'install what it needs: pip install "earl[stack]"',
        ) from error
    if not isinstance(app, typer.Typer):
        raise ConfigError(
            f'command "{point.name}" ({point.value}) is no typer.Typer', "correct its entry point"
        )
    return app


def first_line(point: EntryPoint) -> str:
    """First line of the docstring of the module that an entry point names, without importing it."""
    package, *names = point.module.split(".")
    for folder in _folders(package):
        path = Path(folder, *names)
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if file.is_file():
                match = FIRST_LINE.match(file.read_text(encoding="utf-8"))
                return match["line"].strip() if match else ""
    return "(not installed)"


@cache
def _folders(package: str) -> list[str]:
    """Returns where the modules of a top-level package lie; none if it is not installed."""
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec is not None else []
