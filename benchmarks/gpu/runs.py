"""Whole commands on the device: `earl profile`'s measuring, and `earl demo` of which an engine is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.children import ERROR_CHARACTERS
from benchmarks.gpu.check import CheckFigures, CheckSettings, CheckSkipped, judged
from benchmarks.gpu.models import billion_config, tiny_config, write_checkpoint
from benchmarks.profile import measured, rows_of, run_config
from benchmarks.record.checkout import ROOT
from earl.obs.metrics import read_lines

# The engine processes of a run, by their command line.
ENGINE_MODULE = b"services.rollout.engines.process"
POLL_S = 0.2
DEMO_S = 400.0
STAGES = ["rollout", "trainer"]
# Win rate: the least that the demo gains on a card.
LEAST_GAIN = 0.15


def profile(settings: CheckSettings) -> CheckFigures:
    """Throughput and memory of engines and trainer at a grid of two lengths and two loads."""
    dtype = settings.pick("bfloat16", "float32")
    model = settings.directory / "model"
    config = settings.pick(billion_config(8192), tiny_config(), tiny_config(layers=1))
    write_checkpoint(model, config, dtype, settings.device)
    grid = settings.pick(([1024, 4096], [2, 8]), ([64, 128], [1]), ([64], [1]))
    run = run_config(model, dtype, 1, max(grid[0]), settings.device)
    profiles = measured(run, STAGES, grid, settings.pick(50.0, 90.0), settings.directory / "kept", "points")
    rows = rows_of(profiles)
    lacking = [f"{each.stage} {name}" for each in profiles for name in each.lacking]
    points = len(STAGES) * len(grid[0]) * len(grid[1])
    figures = {
        "dtype": dtype,
        "not_measured": lacking,
        "rows": [
            {
                "stage": row.stage,
                "context_tokens": row.context_tokens,
                "concurrency": row.concurrency,
                "tokens_per_device_s": row.tokens_per_device_s,
                "peak_memory_fraction": row.peak_memory_fraction,
            }
            for row in rows
        ],
    }
    return judged(
        figures,
        {"rows": points},
        {
            f"{len(rows)} of {points} points were measured": len(rows) < points,
            "a point has no throughput, or no part of the memory": any(
                not row.tokens_per_device_s or not row.peak_memory_fraction for row in rows
            ),
        },
    )


def demo(settings: CheckSettings) -> CheckFigures:
    """Trains the demo with two engines; one of them is killed once the first steps are trained."""
    if find_spec("pyspiel") is None:
        raise CheckSkipped(
            "open-spiel is not installed, whose games the demo plays", "install the demo's extra"
        )
    keys = {
        "data_plane.arena_dir": str(settings.arenas),
        "rollout.engines": "2",
        "rollout.device": settings.device,
        "trainer.device": settings.device,
        "scheduler.steps": settings.pick("60", "12", "3"),
        "evaluation.episodes": settings.pick("512", "64", "32"),
    }
    if not settings.on_card:
        # Imitation takes half of the demo's time, and says nothing about engines.
        keys |= {"warmup.batches": "1", "warmup.batch_episodes": "128", "warmup.minibatches": "4"}
        keys |= {"scheduler.batch_groups": "8", "rollout.max_sequences": "64"}
    command = [sys.executable, "-c", "from earl.cli.main import main; main()", "demo", "--json", "--plain"]
    for key, value in keys.items():
        command += [f"--{key}", value]
    log = settings.directory / "demo.log"
    # Runs are made in the current directory.
    path = os.environ.get("PYTHONPATH", "")
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)}
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, cwd=settings.directory, env=environment, stdout=subprocess.PIPE, stderr=errors
        )
    try:
        killed = _kill_engine(process, settings.directory / "runs", time.monotonic() + DEMO_S)
        output, _ = process.communicate(timeout=DEMO_S)
    finally:
        process.kill()
    text = log.read_text(encoding="utf-8", errors="replace")
    if process.returncode:
        print(text[-ERROR_CHARACTERS:])
    result: dict[str, Any] = json.loads(output.splitlines()[-1]) if process.returncode == 0 else {}
    ended = ("trained", "evaluated", "dropped", "live")
    exact = bool(result) and result["issued"] == sum(result[name] for name in ended)
    before, after = result.get("start_win_rate"), result.get("win_rate")
    gain = None if before is None or after is None else after - before
    figures = {
        "exit_code": process.returncode,
        "killed": killed,
        "gain_in_win_rate": round(gain, 3) if gain is not None else None,
        **{name: result.get(name) for name in ("win_rate", "start_win_rate", "seconds", "issued", *ended)},
    }
    return judged(
        figures,
        {
            "ledger": "issued = trained + evaluated + dropped + live",
            "gain_min": settings.pick(LEAST_GAIN, None),
        },
        {
            f"the demo ended with {process.returncode}": process.returncode != 0,
            "no engine was killed": not killed,
            "the ledger's counts do not add up": bool(result) and not exact,
            f"the win rate rose by {gain}": settings.on_card
            and not (gain is not None and gain >= LEAST_GAIN),
        },
    )


def _kill_engine(process: subprocess.Popen[bytes], runs: Path, until_s: float) -> str:
    """SIGKILL to an engine of the run once a step was trained; returns which, "" if the run ended before, or
    trained none until then (monotonic seconds)."""
    while process.poll() is None and time.monotonic() < until_s:
        trained = any(
            record.get("phase") == "train"
            for metrics in runs.glob("*/metrics.jsonl")
            for record in read_lines(metrics)
        )
        engines = sorted(pid for pid in descendants(process.pid) if ENGINE_MODULE in command_line(pid))
        if trained and engines:
            os.kill(engines[0], signal.SIGKILL)
            return f"engine process {engines[0]} of {len(engines)}"
        time.sleep(POLL_S)
    return ""


def descendants(pid: int) -> set[int]:
    """Processes below one, as /proc has them now."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (
                    (entry / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
                )
            except OSError:
                continue  # it has ended
            parents[int(entry.name)] = int(fields[1])
    below, more = set(), {pid}
    while more:
        more = {child for child, parent in parents.items() if parent in more} - below
        below |= more
    return below


def command_line(pid: int) -> bytes:
    """A process's command line, empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
