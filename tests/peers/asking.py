"""Asks TRL, in its own environment, what it makes of a request; `python -m tests.peers.asking` records it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from earl.config.model import ScratchModel
from earl.models.create import write_scratch
from tests.peers import cases

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-trl" / "bin" / "python"
# What TRL made of the given log-probs, for the default suite, which has no TRL.
RECORDED = Path(__file__).resolve().parent / "recorded.json"
ASK_S = 280

SHAPE = ScratchModel(
    hidden_size=24,
    intermediate_size=20,
    layers=2,
    heads=2,
    kv_heads=1,
    words=[f"w{number}" for number in range(cases.VOCABULARY)],
    embedding_std=0.3,
)
MODELS = {"old": 1, "new": 1, "reference": 2}


def models(directory: Path) -> None:
    """Writes old/, new/ (old after an update) and reference/ below `directory`."""
    from safetensors.torch import load_file, save_file

    for name, seed in MODELS.items():
        write_scratch(directory / name, SHAPE, seed, "float32")
    file = directory / "new" / "model.safetensors"
    moved = {name: tensor * 1.05 + 0.01 for name, tensor in load_file(file).items()}
    save_file(moved, file, metadata={"format": "pt"})


def ask(directory: Path, request: dict[str, Any]) -> dict[str, Any]:
    """TRL's answer: {"versions": ..., "cases": by name}; models stand in `directory`."""
    (directory / "request.json").write_text(json.dumps(request))
    side = Path(__file__).with_name("trl_side.py")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [str(PYTHON), str(side), str(directory)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=ASK_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((directory / "answer.json").read_text())


def formulas_request() -> dict[str, Any]:
    return {**cases.with_given(cases.trajectories()), "cases": cases.cases()}


def record() -> None:
    """Writes RECORDED anew with the TRL that is installed."""
    with tempfile.TemporaryDirectory() as scratch:
        models(Path(scratch))
        request = formulas_request()
        answer = ask(Path(scratch), request)
    RECORDED.write_text(json.dumps({"request": request, "answer": answer}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
