"""The name under which a directory of a model is written, before it is renamed into place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_MARK = ".partial-"


def partial_path(target: Path, pid: int) -> Path:
    """The directory in which the process `pid` writes `target`, in the same parent directory."""
    return target.with_name(f".{target.name}{_MARK}{pid}")


def partial_paths(target: Path) -> Iterator[Path]:
    """The directories in which any process writes `target`, or was writing it when it was killed."""
    start = f".{target.name}{_MARK}"
    return (path for path in target.parent.glob(".*") if path.name.startswith(start))
