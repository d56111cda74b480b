"""TRL's processes: one of its samplers each; the trial that finds the fastest of them; the runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.e2e.earl_side import questions
from benchmarks.e2e.settings import Settings, Trace
from benchmarks.e2e.vllm_sampler import ENVIRONMENT
from benchmarks.record.checkout import ROOT
from benchmarks.record.progress import phase
from earl.errors import ConfigError, EarlError, ProcessFailed


@dataclass(frozen=True, slots=True)
class Home:
    """The environment of a sampler. make: the target that makes it. compiles: its first start compiles
    kernels, which later ones find in caches."""

    directory: str
    make: str
    compiles: bool = False

    @property
    def python(self) -> Path:
        return ROOT / self.directory / "bin" / "python"


PEERS = Home(".venv-trl", "setup-peers")
# Where each of TRL's samplers runs; trl_side.py tells them apart by these names.
VLLM = Home(".venv-trl-vllm", "setup-trl-vllm", compiles=True)
SAMPLERS = {"generate": PEERS, "continuous": PEERS, "vllm": VLLM, "vllm-compiled": VLLM}
AUTO = "auto"
# Steps of a trial, the first of which is not counted, and the most seconds that they may take.
TRIAL_STEPS = 5
TRIAL_S = 150.0
# A sampler's time to the reward is projected for as many steps: about what the runs need.
PROJECTED_STEPS = 64
# A process that has ended its steps may take so long for the rest.
REST_S = 120.0
# What an error keeps of a process's output.
LOG_CHARACTERS = 2000


def require(sampler: str) -> None:
    """Raises ConfigError for a sampler that is none of TRL's, or whose environment is not there."""
    if sampler not in SAMPLERS:
        raise ConfigError(
            f"--generation {sampler!r} is none of TRL's samplers", f"give {', '.join([*SAMPLERS, AUTO])}"
        )
    home = SAMPLERS[sampler]
    if not home.python.exists():
        raise ConfigError(f"{home.python} is not there", f"make it with: make {home.make}")


def trials(settings: Settings, model: Path, directory: Path) -> dict[str, dict[str, Any]]:
    """A short run of every sampler, by name: start_s, step_s and the `seconds` that PROJECTED_STEPS would
    take with the start, or the error why it cannot be had.

    first_start_s: a start before it, in which code was compiled.
    """
    outcomes: dict[str, dict[str, Any]] = {}
    for sampler in SAMPLERS:
        phase(f"{settings.task}: trial of TRL's {sampler}")
        outcomes[sampler] = _trial(settings, model, directory / f"trial-{sampler}", sampler)
        say(f"{settings.task}, TRL's {sampler}: {outcomes[sampler]}")
    return outcomes


def _trial(settings: Settings, model: Path, directory: Path, sampler: str) -> dict[str, Any]:
    # No reward reaches 2: the trial takes all its steps.
    limits = replace(settings, steps=TRIAL_STEPS, threshold=2.0, limit_s=min(TRIAL_S, settings.limit_s))
    first: dict[str, float] = {}
    try:
        require(sampler)
        if SAMPLERS[sampler].compiles:
            first = {"first_start_s": run(replace(limits, steps=1), model, directory, sampler).began_s}
        figures = run(limits, model, directory, sampler).figures(limits)
    except EarlError as error:
        return {"error": f"{error}"}
    start_s, step_s = figures["start_s"], figures["step_s_median"]
    if step_s is None:
        return {"error": f"no two steps in {limits.limit_s:g} s"}
    seconds = round(start_s + PROJECTED_STEPS * step_s, 1)
    return {**first, "start_s": start_s, "step_s": step_s, "seconds": seconds}


def fastest(outcomes: Mapping[str, Mapping[str, Any]]) -> str:
    """The sampler with the least projected time. Raises ProcessFailed if none of them ran."""
    seconds = {sampler: outcome["seconds"] for sampler, outcome in outcomes.items() if "seconds" in outcome}
    if not seconds:
        raise ProcessFailed(f"none of TRL's samplers runs here: {outcomes}", "see the output above")
    return min(seconds, key=lambda sampler: seconds[sampler])


def run(settings: Settings, model: Path, directory: Path, sampler: str) -> Trace:
    """Trains with TRL in a process and an environment of its own, ended at twice its limit whatever it does.

    Leaves the trained model where `final_model` says. Raises ProcessFailed with the end of its output.
    """
    directory.mkdir(parents=True, exist_ok=True)
    result, request = directory / "trl.json", directory / "trl-request.json"
    values = {
        "settings": settings.as_dict(),
        "model": str(model),
        "seeds": questions(settings),
        "generation": sampler,
        "started_s": time.monotonic(),
        "result": str(result),
    }
    request.write_text(json.dumps(values), encoding="utf-8")
    command = [str(SAMPLERS[sampler].python), "-m", "benchmarks.e2e.trl_side", str(request)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", **ENVIRONMENT}
    log = directory / "trl.log"
    limit_s = 2 * settings.limit_s + REST_S
    try:
        with log.open("w") as output:
            subprocess.run(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, check=True, timeout=limit_s
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        last = log.read_text(encoding="utf-8", errors="replace")[-LOG_CHARACTERS:]
        raise ProcessFailed(f"TRL's process: {error}; its last output: {last}", f"run {command}") from error
    return Trace(**json.loads(result.read_text(encoding="utf-8")))


def final_model(directory: Path) -> Path:
    """The trained model's directory; it need not exist."""
    return directory / "trl.json.model"


def say(text: str) -> None:
    sys.stderr.write(f"e2e: {text}\n")
    sys.stderr.flush()
