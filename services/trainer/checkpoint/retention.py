"""Chooses the checkpoints to keep: the newest, those that the scheduler holds, and a link to the best.

checkpoints/step-40  step-60  step-80        newest of keep_checkpoints
checkpoints/step-20  ◄── best                the best version so far, and what is being evaluated
model                ◄── best                where nothing was better than the model that the run began with
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

BEST = "best"
# In the parent of the directory of checkpoints: what the run began with.
MODEL = "model"
_STEP = re.compile(r"step-(\d+)")


def version_of(path: Path) -> int:
    """The version that a checkpoint directory is named after; 0 if it is none."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else 0


def checkpoints(directory: Path) -> list[Path]:
    """The checkpoints below `directory`, newest first."""
    existing = [path for path in directory.glob("step-*") if version_of(path)]
    return sorted(existing, key=version_of, reverse=True)


def prune(directory: Path, newest: Path, count: int, held: Collection[int]) -> None:
    """Removes all but `newest`, count - 1 before it, and the versions in `held`.

    What is newer than `newest` belongs to a history that was rolled back, held or not.
    """
    existing = checkpoints(directory)
    index = existing.index(newest)
    old = [path for path in existing[index + count :] if version_of(path) not in held]
    for path in (*existing[:index], *old):
        shutil.rmtree(path, ignore_errors=True)
    if not (directory / BEST).exists():
        (directory / BEST).unlink(missing_ok=True)


def marked_version(directory: Path) -> int:
    """The version that `best` points to, 1 for the model that the run began with; 0 if there is none."""
    link = directory / BEST
    return version_of(Path(os.readlink(link))) or 1 if link.exists() else 0


def mark_best(directory: Path, version: int) -> None:
    """Lets `best` point to this version's checkpoint, at once or not at all; nothing if there is none.

    Version 1 is the run's model, and needs no checkpoint.
    """
    target = Path(f"step-{version}")
    if version == 1 and not (directory / target).is_dir():
        target = Path("..", MODEL)
    link = directory / BEST
    if not (directory / target).is_dir() or (link.is_symlink() and Path(os.readlink(link)) == target):
        return
    scratch = directory / f".{BEST}.new"
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(target, target_is_directory=True)
    os.replace(scratch, link)
