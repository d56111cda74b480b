"""`earl env new`: a project with an environment that works, its tests, a run file that trains on it."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from earl.cli.env.templates import FILES
from earl.errors import ConfigError

_NAME = re.compile(r"^[a-z][a-z0-9]*([_-][a-z0-9]+)*$")
_TAKEN = {"earl", "services", "benchmarks", "tests", "test"}


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the project, for example word-guess.")],
    directory: Annotated[
        Path | None, typer.Option("--in", metavar="DIR", help="Where to put it; else the current directory.")
    ] = None,
) -> None:
    """Begin a project: an environment that works, its tests, a run file that trains on it.

    Its tests pass and so does `earl env test`; change the game, then the tests.
    """
    package = package_of(name)
    root = (directory or Path()) / name
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} is there already", "choose another name, or remove it")
    title = "".join(part.capitalize() for part in re.split("[_-]", name))
    words = {"project": name, "package": package, "title": title}
    for path, text in FILES.items():
        file = root / Template(path).substitute(words)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(text).substitute(words), encoding="utf-8")
    print(f"{root}: an environment, its tests and a run file. Next:\n")
    for line in (
        f"cd {root}",
        f"earl env play {package}:{title}",
        f"earl env test {package}:{title} --script episodes.jsonl",
        "earl train run.toml",
    ):
        print(f"    {line}")


def package_of(name: str) -> str:
    """The Python package of a project's name. Raises ConfigError for a name that gives none."""
    package = name.replace("-", "_")
    if not _NAME.match(name) or keyword.iskeyword(package):
        remedy = "use small letters, digits and single dashes, like word-guess"
        raise ConfigError(f"{name!r} is no name for a project", remedy)
    if package in _TAKEN or package in sys.stdlib_module_names:
        raise ConfigError(f"{name!r} is the name of another Python package", "choose another one")
    return package
