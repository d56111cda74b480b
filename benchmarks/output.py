"""What every benchmark shares: its options, and one JSON file a run with the machine and the commit."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.machine import ROOT, commit
from earl.obs.machine import machine

RESULTS = ROOT / "benchmarks" / "results"

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Results = Annotated[Path, typer.Option(help="Directory that the result is written to.")]
Seeds = Annotated[str, typer.Option(help="Seeds, separated by commas.")]


def whole_numbers(text: str) -> list[int]:
    """ "1,8,32" as numbers; typer.BadParameter for anything else."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of whole numbers such as 1,8,32") from None


def publish(name: str, figures: dict[str, Any], results: Path, *, as_json: bool) -> Path:
    """Writes results/NAME-TIME.json: the figures, where and from which commit they come. Returns its path."""
    result = {"benchmark": name, "commit": commit(), "machine": machine(), **figures}
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(f"written: {path}\n")
    if as_json:
        print(json.dumps(result))
    return path
