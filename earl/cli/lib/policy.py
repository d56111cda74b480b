"""Finds the policy that `earl eval` and `earl chat` play: a version of a run, or a model of its own.

RUN, with --version or --best                 that version of the run; the default one without either
.../checkpoints/step-40, latest or best       that version of the run above the folder
a directory with a model's config.json        the model, such as earl export writes
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from earl.cli.lib import completion
from earl.cli.lib.find_run import NEWEST, directory_of, pick_run
from earl.errors import ConfigError

# "default": the newest one; of a run with protected environments the best, for that has kept them.
Version = int | Literal["best", "latest", "default"]

# The default version, in the help of commands.
DEFAULT = "the newest, or the best of a run with protected environments"

CHECKPOINTS = "checkpoints"
_STEP = re.compile(r"step-([1-9][0-9]*)")

Policy = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN|DIRECTORY]",
        help=f"{NEWEST.rstrip('.')}; or a checkpoint, such as runs/NAME/checkpoints/latest; or a model that "
        "earl export wrote.",
        autocompletion=completion.runs,
    ),
]


@dataclass(frozen=True, slots=True)
class RunVersion:
    """A version of a run's policy. run: the run's directory. Whether the version exists is not known yet."""

    run: Path
    version: Version


def policy_of(text: str | None, version: int, *, best: bool) -> RunVersion | Path:
    """The version of a run, or a model's directory. text: as typed; version: 0 for the default.

    Raises ConfigError if there is no such run or directory, or if the version is chosen twice.
    """
    if version and best:
        raise ConfigError("--version and --best are two ways to choose the version", "give one of them")
    chosen: Version = "best" if best else version or "default"
    if text is None:
        return RunVersion(pick_run(None, ended=True), chosen)
    path = Path(text)
    if path.parent.name == CHECKPOINTS and not is_model(path):
        run = pick_run(path.parent.parent)
        if version or best:
            raise ConfigError(
                f"{text} is one version of {run}, and --version and --best choose another", "leave them out"
            )
        return RunVersion(run, named_version(run / CHECKPOINTS / path.name))
    directory = directory_of(text)
    if (directory / "run.json").is_file():
        return RunVersion(directory, chosen)
    if not is_model(directory):
        raise ConfigError(
            f"{directory} is neither a run nor a model",
            "give a run, one of its checkpoints (runs/NAME/checkpoints/latest), or what earl export wrote",
        )
    if version or best:
        raise ConfigError(
            f"{directory} is one model, and --version and --best choose among a run's", "leave them out"
        )
    return directory


def is_model(directory: Path) -> bool:
    """Returns whether a directory is a model of its own; False for a run's `best`, which may link to one."""
    in_run = (directory.parent.parent / "run.json").is_file() and directory.parent.name == CHECKPOINTS
    return (directory / "config.json").is_file() and not in_run


def named_version(checkpoint: Path) -> Version:
    """The version that a path below a run's checkpoints names. Raises ConfigError."""
    name = checkpoint.name
    if name == "best" or name == "latest":
        return name
    if match := _STEP.fullmatch(name):
        return int(match[1])
    steps = [
        int(match[1]) for path in checkpoint.parent.glob("step-*") if (match := _STEP.fullmatch(path.name))
    ]
    names = ["latest", "best", *(f"step-{step}" for step in sorted(steps, reverse=True))]
    raise ConfigError(f"{checkpoint} is no checkpoint", f"give one of: {', '.join(names)}")
