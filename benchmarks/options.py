"""Options that every benchmark has, and the directory that its result is saved to by default."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.record.checkout import RESULTS_FOLDER, ROOT
from earl.obs.processor import flags, native_bfloat16

# An installed package has no record: its results go below the current directory.
RESULTS = ROOT / RESULTS_FOLDER if (ROOT / ".git").exists() else Path("bench-results")

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Results = Annotated[Path, typer.Option(help="Directory that the result is saved to.")]
Dtype = Annotated[
    str, typer.Option(help="bfloat16, float32, or auto: bfloat16 where the processor computes it.")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seeds = Annotated[str, typer.Option(help="Seeds, separated by commas.")]


def whole_numbers(text: str) -> list[int]:
    """Numbers of a list such as "1,8,32". Raises typer.BadParameter for anything else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of whole numbers such as 1,8,32") from None


def computed_dtype(dtype: str, device: str = "cpu") -> Literal["bfloat16", "float32"]:
    """The dtype that a benchmark computes in on this device. Raises typer.BadParameter for no `Dtype`."""
    if dtype == "auto":
        return "bfloat16" if device == "cuda" or native_bfloat16(flags()) else "float32"
    if dtype in ("bfloat16", "float32"):
        return dtype
    raise typer.BadParameter(f"--dtype {dtype} is none of auto, bfloat16 and float32")
