"""A command group whose subcommands are entry points, imported only when called.

`earl --help` stays fast and imports no torch however heavy a subcommand is: its one line of help is
the first line of its module's docstring, read from the source.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from earl.errors import ConfigError

MORE = "More"


class EntryPointGroup(TyperGroup):
    """Subclasses name the entry-point group; each entry point names a typer.Typer.

    panels: headings of the help and the commands below each, in this order; others are below MORE.
    """

    entry_point_group = ""
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Stand-ins that have the name and the help; `resolve_command` brings the real ones.
        points = commands_of(self.entry_point_group)
        headed = [(name, panel) for panel, names in self.panels.items() for name in names if name in points]
        rest = sorted(points.keys() - {name for name, _ in headed})
        more = MORE if headed else None
        self.commands = {
            name: TyperCommand(name, help=first_line(points[name]), rich_help_panel=panel)
            for name, panel in [*headed, *((name, more) for name in rest)]
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        point = commands_of(self.entry_point_group)[str(name)]
        command = get_command(load(point))
        command.name = name
        return name, command, rest


class Commands(EntryPointGroup):
    entry_point_group = "earl.commands"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Run": ("demo", "train", "up", "down", "parallelism", "export"),
        "Look": ("status", "top", "dashboard", "logs", "report", "compare", "explain", "trace", "sink"),
        "Environments": ("env",),
        "Measure": ("profile", "replay", "bench"),
        "Set up": ("doctor", "tokens", "certs", "version"),
    }


class Benchmarks(EntryPointGroup):
    entry_point_group = "earl.benchmarks"


def commands_of(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name."""
    return {point.name: point for point in entry_points(group=group)}


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
        raise ConfigError(f'command "{point.name}" ({point.value}) is no typer.Typer', "mend its entry point")
    return app


def first_line(point: EntryPoint) -> str:
    """First line of the docstring of the module that an entry point names, without importing it."""
    try:
        spec = importlib.util.find_spec(point.module)
    except ImportError:
        spec = None
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return "(not installed)"
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
