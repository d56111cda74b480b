"""The progress of an export, as the files that grow on disk show it: another process may write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from earl.cli.lib.run_directory import config_of
from earl.models.partial import partial_paths
from earl.models.spec import load_spec

# Bytes of a parameter.
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
MB = 1_000_000


def export_progress(to: Path, run: Path, dtype: str = "") -> Callable[[], tuple[int, int]]:
    """A function that returns how many MB of a run's weights are written to `to`, and how many there will be.

    dtype: of the exported weights, "" for the run's. Both figures are 0 where the run has no model yet, or
    `dtype` is unknown: the export itself reports that. Raises ConfigError for a run that cannot be read.
    """
    model = run / "model"
    total = 0
    if (model / "config.json").is_file():
        item_bytes = ITEM_BYTES.get(dtype or config_of(run).model.weight_dtype, 0)
        total = load_spec(model).parameters * item_bytes // MB
    earlier = set(partial_paths(to))

    def progress() -> tuple[int, int]:
        written = sum(map(size_bytes, set(partial_paths(to)) - earlier))
        return min(written // MB, total), total

    return progress


def size_bytes(directory: Path) -> int:
    """Bytes of the files in a directory, which another process may write, rename or remove meanwhile."""
    total = 0
    for path in directory.glob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # renamed: it counts the next time
    return total
