"""The torch engine on the device: its contract's tests, and its speed beside transformers' generate."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, Literal

from benchmarks import engine as speed
from benchmarks.gpu.check import CheckFigures, CheckSettings, CheckSkipped, judged
from benchmarks.gpu.models import billion_config, tiny_config, write_checkpoint
from benchmarks.record.checkout import ROOT
from services.rollout.engines.contract.engine import EngineSpec

# Files of tests/contract, and what must be installed for them.
PACKAGES = ("pytest", "pytest_asyncio", "pytest_timeout", "psutil", "transformers")
OUTCOMES = re.compile(r"(\d+) (passed|failed|skipped|error)")
SHOWN_LINES = 20
START_S = 120.0
BATCHES = [1, 8, 32, 128]
# Fewer tokens a second than so many times those of transformers' generate are a fault of the engine.
SLOWEST = 0.5


def contract(settings: CheckSettings) -> CheckFigures:
    """Sampling, sessions and the queue."""
    return _tests(settings, "test_engine.py")


def contract_life(settings: CheckSettings) -> CheckFigures:
    """Weights that change, aborts, pauses, preemption, broken weights, death."""
    return _tests(settings, "test_engine_life.py")


def contract_memory(settings: CheckSettings) -> CheckFigures:
    """KV within its bound, dtypes, the same bits in deterministic engines."""
    return _tests(settings, "test_engine_memory.py")


def contract_drafts(settings: CheckSettings) -> CheckFigures:
    """The same tokens, log-probs and versions with drafts and without."""
    return _tests(settings, "test_engine_drafts.py")


def contract_handover(settings: CheckSettings) -> CheckFigures:
    """KV from engine to engine."""
    return _tests(settings, "test_engine_handover.py")


def _tests(settings: CheckSettings, file: str) -> CheckFigures:
    """Runs a file of the contract's suite on the device."""
    path = ROOT / "tests" / "contract" / file
    if not path.exists():
        raise CheckSkipped(
            f"there is no {path}: the suite is not part of an installed package",
            "run it from a checkout, or from the kit's source folder",
        )
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise CheckSkipped(f"{', '.join(missing)} is not installed", "install what the kit brings")
    device = settings.device if settings.gpus == 1 or not settings.on_card else "cuda"
    # In a line as wide as this, a failed test's reason has room.
    environment = os.environ | {"EARL_TEST_DEVICE": device, "EARL_TEST_ENGINES": "torch", "COLUMNS": "400"}
    arguments = [
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        "-rfE",
        "--basetemp",
        str(settings.directory / "t"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(path), *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.strip().splitlines()
    counts = {name: int(count) for count, name in OUTCOMES.findall(lines[-1] if lines else "")}
    figures: dict[str, Any] = {"tests": file, "exit_code": done.returncode, **counts}
    if done.returncode:
        # For the row of a check that failed.
        print("\n".join(lines[-SHOWN_LINES:]), done.stderr[-1000:], sep="\n")
        figures["failures"] = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return judged(
        figures,
        {"exit_code": 0},
        {
            f"{counts.get('failed', 0)} of the contract's tests failed": done.returncode == 1,
            f"pytest ended with {done.returncode}": done.returncode > 1,
            "no test ran": done.returncode == 0 and not counts.get("passed"),
        },
    )


def engine_speed(settings: CheckSettings) -> CheckFigures:
    """Tokens per second at 1, 8, 32 and 128 sequences, beside transformers (and vLLM, where it is)."""
    config = settings.pick(billion_config(), tiny_config(), tiny_config(layers=1))
    new_tokens = settings.pick(24, 8, 2)
    dtype: Literal["float32", "bfloat16"] = "bfloat16" if settings.on_card else "float32"
    directory = settings.directory / "model"
    write_checkpoint(directory, config, dtype, settings.device)
    batches = settings.pick(BATCHES, BATCHES, BATCHES[:2])
    spec = EngineSpec(
        name="bench",
        model_dir=str(directory),
        device=settings.device,
        threads=2,
        dtype=dtype,
        max_sequences=max(batches),
        max_context_tokens=speed.RAGGED[1] + new_tokens,
        start_s=START_S,
    )
    repetitions = settings.pick(2, 1)
    work = speed.measure(
        spec, batches, new_tokens, repetitions, with_vllm=settings.on_card, deterministic=False
    )
    figures = {"dtype": dtype, "new_tokens": new_tokens, **asyncio.run(work)}
    slow = {
        f"at {row['batch']} sequences it has {row['vs_generate']} times the tokens of transformers": (
            settings.on_card and row["vs_generate"] < SLOWEST
        )
        for row in figures["batches"]
    }
    return judged(figures, {"vs_generate_min": SLOWEST} if settings.on_card else {}, slow)
