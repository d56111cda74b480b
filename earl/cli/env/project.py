"""`earl env new`: a project with an environment that works, its tests, a run file that trains on it.

The project's files lie in skeleton/. The game is small on purpose: a digit to guess, and after each guess
where it can still be, which a policy of 0.4 M parameters learns from nothing within minutes. With seed 7,
which the tests and episodes.jsonl use, the digit is 2.
"""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from earl.errors import ConfigError

# string.Template texts with $project, $package and $title; PACKAGE in a path is the package's name.
SKELETON = Path(__file__).with_name("skeleton")
_NAME = re.compile(r"^[a-z][a-z0-9]*([_-][a-z0-9]+)*$")
_TAKEN = {"earl", "services", "benchmarks", "tests", "test"}


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the project, for example word-guess.")],
    directory: Annotated[
        Path | None, typer.Option("--in", metavar="DIR", help="Where to put it; else the current directory.")
    ] = None,
) -> None:
    """Create a project: a working environment, its tests, a run file that trains on it.

    Its tests pass and so does `earl env test`; change the game, then the tests.
    """
    package = package_of(name)
    root = (directory or Path()) / name
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{root} already exists", "choose another name, or remove it")
    title = "".join(part.capitalize() for part in re.split("[_-]", name))
    words = {"project": name, "package": package, "title": title}
    for template in SKELETON.rglob("*.template"):
        path = template.relative_to(SKELETON).with_suffix("").as_posix().replace("PACKAGE", package)
        text = Template(template.read_text(encoding="utf-8")).substitute(words)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
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
        remedy = "use lower-case letters, digits and single dashes, like word-guess"
        raise ConfigError(f"{name!r} is not a valid project name", remedy)
    if package in _TAKEN or package in sys.stdlib_module_names:
        raise ConfigError(f"{name!r} is the name of another Python package", "choose another one")
    return package
