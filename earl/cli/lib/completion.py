"""Completion in the shell: runs, their processes, environments. Nothing here asks a service or raises."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from earl.errors import EarlError
from earl.stack.run_files import LOGS

RUNS = Path("runs")
# Directories there, the newest first.
MOST_RUNS = 64


def newest(folder: Path | None = None) -> list[Path]:
    """Directories of runs in a folder, RUNS if none is given, those first that were launched last."""
    run_files = (folder or RUNS).glob("*/run.json")
    run_files = sorted(run_files, key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in run_files[:MOST_RUNS]]


def runs(incomplete: str) -> list[str]:
    """Directories of runs that complete the word."""
    return [str(path) for path in newest() if str(path).startswith(incomplete)]


def runs_and_processes(incomplete: str) -> list[str]:
    """Directories of runs, and names of the newest run's processes, that complete the word."""
    logs = [path for run in newest()[:1] for path in sorted((run / LOGS).glob("*.log"))]
    return [*runs(incomplete), *(path.stem for path in logs if path.stem.startswith(incomplete))]


def targets(incomplete: str) -> list[str]:
    """Adapters that come with EARL, as "module:environments", that complete the word."""
    from earl.env import adapters

    modules = sorted(Path(path).stem for path in Path(str(adapters.__file__)).parent.glob("*.py"))
    names = [f"{adapters.__name__}.{module}:environments" for module in modules if serves(module)]
    return [name for name in names if name.startswith(incomplete)]


def serves(module: str) -> bool:
    """Returns whether an adapter defines `environments`, without importing it."""
    from earl.env import adapters

    source = Path(str(adapters.__file__)).with_name(f"{module}.py")
    return "\ndef environments(" in source.read_text(encoding="utf-8")


def targets_and_names(ctx: Any, args: list[str], incomplete: str) -> list[str]:
    """A target first, then the names of its environments."""
    given = ctx.params.get("who") or []
    if not given:
        return targets(incomplete)
    from earl.env.serve import load

    with suppress(EarlError):
        return [name for name in sorted(load(given[0])) if name.startswith(incomplete)]
    return []
