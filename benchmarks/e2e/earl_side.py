"""EARL's side of `earl bench e2e`: `earl train` on a run file as a user starts it, observed from outside.

The real stack, every service a process of its own: scheduler, gateway, an environment host, a rollout
worker with one engine, the trainer; one torch thread for the engine and one for the trainer, which work
at the same time (staleness 1: the trainer is one step behind the samplers).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.e2e.environment import ENVIRONMENTS
from benchmarks.e2e.settings import Settings, Trace, reached
from earl.config.run import RunConfig
from earl.obs.machine import installed
from earl.stack.rundir import to_toml
from services.scheduler.state.seeds import env_seed

POLL_S = 0.02
# From the first signal to the stack's end, at most; then it is killed.
STOP_S = 90.0
NAME = "earl"


def run_config(settings: Settings, model: Path, runs_dir: Path, changes: dict[str, Any]) -> RunConfig:
    """The run file. changes: sections to update, for experiments."""
    sort, environment = settings.sort, ENVIRONMENTS[settings.task]
    values: dict[str, Any] = {
        "name": NAME,
        "seed": settings.seed,
        "runs_dir": str(runs_dir),
        "model": {"path": str(model)},
        "environment": {
            "name": environment.name,
            "serve": f"{environment.__module__}:{environment.__qualname__}",
        },
        "rollout": {
            "device": "cpu",
            "threads": 1,
            "max_sequences": settings.group_size * settings.groups,
            "max_context_tokens": sort.prompt_tokens + sort.answer_tokens,
            "max_new_tokens": sort.answer_tokens,
        },
        "trainer": {
            "device": "cpu",
            "threads": 1,
            "lr": settings.lr,
            "betas": settings.betas,
            "max_grad_norm": settings.max_grad_norm,
            "clip_low": settings.epsilon,
            "clip_high": settings.epsilon,
            "checkpoint_every": 0,
        },
        "scheduler": {
            "group_size": settings.group_size,
            "batch_groups": settings.groups,
            "steps": settings.steps,
            "staleness": 1,
            "temperature": settings.temperature,
            "max_turns": 1,
            "transcripts": 0,
        },
        "evaluation": {"episodes": 0, "at_start": False, "at_end": False},
    }
    for section, update in changes.items():
        values[section] = {**values[section], **update}
    return RunConfig.model_validate(values)


def questions(settings: Settings) -> list[int]:
    """The question of every group in the order of training; TRL gets the same."""
    return [env_seed(settings.seed, "train", index) for index in range(settings.groups * settings.steps)]


def run(settings: Settings, model: Path, directory: Path, changes: dict[str, Any] | None = None) -> Trace:
    """Trains until the threshold or the limit of the settings; leaves the run in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    run_file = directory / "earl.toml"
    config = run_config(settings, model, directory, changes or {})
    run_file.write_text(to_toml(config.model_dump(mode="json")), encoding="utf-8")
    trace = Trace()
    started_s, started_ns = time.monotonic(), time.time_ns()
    command = [str(Path(sys.executable).with_name("earl")), "train", str(run_file), "--plain"]
    with (directory / "earl.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _follow(process, directory / NAME / "metrics.jsonl", trace, settings, started_s)
        finally:
            _stop(process)
    trace.began_s = _began_s(directory / NAME / "timeline.jsonl", started_ns)
    trace.versions = {name: installed(name) for name in ("earl", "torch", "transformers")}
    trace.settings = config.model_dump(mode="json", include={"rollout", "trainer", "scheduler"})
    return trace


def _follow(
    process: subprocess.Popen, metrics: Path, trace: Trace, settings: Settings, started_s: float
) -> None:
    """Records every step as its line appears, until the threshold, the limit or the process's end."""
    read_lines = 0
    while True:
        ended = process.poll() is not None
        now_s = time.monotonic() - started_s
        lines = metrics.read_text(encoding="utf-8").split("\n")[:-1] if metrics.exists() else []
        for line in lines[read_lines:]:
            trace.rewards.append(json.loads(line)["reward_mean"])
            trace.times_s.append(now_s)
            if reached(trace.rewards, settings):
                return
        read_lines = len(lines)
        if ended or now_s > settings.limit_s:
            return
        time.sleep(POLL_S)


def _stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _began_s(timeline: Path, started_ns: int) -> float:
    """Returns when the engine had its first weights: sampling, and so training, begins there."""
    if not timeline.exists():
        return 0.0
    spans = [json.loads(line) for line in timeline.read_text(encoding="utf-8").splitlines()]
    loads = [span["end_ns"] for span in spans if span["what"] == "load"]
    return (min(loads) - started_ns) / 1e9 if loads else 0.0


def final_model(directory: Path) -> Path:
    """The trained model's directory, in transformers' format; it need not exist."""
    return directory / NAME / "model-final"
