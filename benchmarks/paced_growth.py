"""growing-context on paced devices: EARL against every static layout, in pairs of one seed.

earl profile of the paced devices
round 1   the selector and every legal static layout, one run each ─► who ends for memory, who survives
round 2…  the selector and the quickest survivors, in turns, each round with a seed of its own
bare      the same ways once without a pace, on this machine's cores: reported, never the headline
"""

from __future__ import annotations

import itertools
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.goals import missed_goals
from benchmarks.learning import published
from benchmarks.record.progress import counted, phase
from earl.cli.report.curves import TRAIN
from earl.cli.report.data import RecordedRun
from earl.config.load import Override
from earl.config.paced_check import paced_text
from earl.config.run import RunConfig
from earl.errors import ConfigError
from services.scheduler.ledger.intervals import mean_interval

# A way of running the file: its name, and the overrides that make it.
Ways = Mapping[str, Sequence[Override]]
# Runs a way to its end, with overrides of its own, and returns its record.
Runs = Callable[[str, Sequence[Override]], RecordedRun]

COMPARES = (
    "SIMULATED TIMES: the run file's devices are paced (docs/paced.md); services, data plane, ledger, "
    "switches, weights and sampling are real. Tokens trained on per second of a whole run, warm-up and "
    "switches included, and seconds until the rewards of a run's steps of training add up to what they do "
    "in both runs of a pair: with the selector, and in each legal static layout of rollout and trainer, all "
    "of them under the same table's memory. A static layout ends for memory if an episode was truncated or "
    "lost for want of it. Round 1 runs all; the later rounds the selector and the quickest survivors. A "
    "round has one seed; intervals are 95 %, of the logarithm of the ratio of a round's two runs (Student's "
    "t). vs_best_static: against the survivor with most tokens/s; reward_seconds: against the survivor that "
    "is hardest to beat, above 1 where the selector is sooner. over_pace_max: the largest part of a run's "
    "steps that took longer than their pace, engines' and trainer's together; late_passes_max: of the "
    "trainer's passes alone. bare: one run of each way without a pace, on this machine's own cores."
)
GOALS = {
    "vs_best_static_low": 1.0,
    "reward_seconds_low": 1.0,
    "survivors_min": 3.0,
    "over_pace_max": 0.05,
    "oom_max": 0.0,
    "truncated_max": 0.0,
}
# Lengths and loads of the profile, and the minutes for it.
CONTEXTS, LOADS, MINUTES = "24,72,144,200", "32,128", 6
# Static layouts that later rounds repeat, at most.
REPEATED = 3


def compare(
    run_file: Path, config: RunConfig, given: Sequence[Override], ways: Ways, ours: str, run: Runs,
    figures_of: Callable[[RecordedRun], dict[str, Any]], survives: Callable[[dict[str, Any]], bool],
    repetitions: int, results: Path, *, as_json: bool,
) -> None:  # fmt: skip
    """Runs and publishes the comparison. ours: the way with the selector. Raises ConfigError for a run file
    whose devices are real."""
    if config.pace is None:
        raise ConfigError(f"{run_file.name} has no [paced] table, and --paced needs one", "give it a pace")
    phase("measuring the paced devices")
    profile(run_file, given)
    runs: list[dict[str, Any]] = []
    bare: list[dict[str, Any]] = []
    records: list[RecordedRun] = []

    def once(way: str, number: int) -> None:
        records.append(run(way, [("seed", str(config.seed + number))]))
        figures = {"way": way, "repetition": number, **figures_of(records[-1])}
        figures["late_passes"] = late_passes(records[-1])
        runs.append({**figures, "survives": survives(figures)})

    def summed(_: list[dict[str, Any]]) -> dict[str, Any]:
        return {**summary(runs, records, ours), "bare": bare_summary(bare, ours)}

    about = {
        "compares": COMPARES,
        "paced": paced_text(config),
        "goals": GOALS,
        "run_file": run_file.name,
        "settings": config.model_dump(mode="json", exclude={"name", "runs_dir"}, exclude_defaults=True),
        "bare_runs": bare,
    }
    with published("growing-context-paced", about, runs, summed, results, as_json=as_json):
        for way in counted("runs, each way once", list(ways)):
            once(way, 0)
        kept = [ours, *repeated(runs, ours)]
        turns = [(way, number) for number in range(1, repetitions) for way in kept[:: (-1) ** number]]
        for way, number in counted("runs of the selector and of survivors", turns):
            once(way, number)
        real = [("paced.table", ""), ("paced.time_scale", "1"), ("paced.context_scale", "1"),
                ("paced.load_scale", "1")]  # fmt: skip
        for way in counted("runs on the bare cores", kept):
            bare.append({"way": way, **figures_of(run(way, real))})


def profile(run_file: Path, given: Sequence[Override]) -> None:
    """Measures the paced devices as `earl profile` does, which keeps the figures for the runs."""
    keys = [part for key, value in given if "." in key for part in (f"--{key}", value)]
    grid = ("--contexts", CONTEXTS, "--concurrency", LOADS, "--minutes", str(MINUTES))
    command = [sys.executable, "-m", "earl.cli.main", "profile", str(run_file), *grid, *keys]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def repeated(runs: Sequence[Mapping[str, Any]], ours: str) -> list[str]:
    """The static layouts of the first round that survived, the quickest first, REPEATED at most."""
    alive = [run for run in runs if run["survives"] and run["way"] != ours]
    alive.sort(key=lambda run: -run["tokens_per_s"])
    return [run["way"] for run in alive[:REPEATED]]


def summary(runs: Sequence[Mapping[str, Any]], records: Sequence[RecordedRun], ours: str) -> dict[str, Any]:
    """The figures and the goals that they miss."""
    of: dict[str, dict[int, int]] = {}
    for index, run in enumerate(runs):
        of.setdefault(run["way"], {})[run["repetition"]] = index
    survivors = [way for way, places in of.items() if all(runs[i]["survives"] for i in places.values())]
    rates = {
        way: statistics.fmean(runs[i]["tokens_per_s"] or 0.0 for i in places.values())
        for way, places in of.items()
    }
    rivals = [way for way in survivors if way != ours and len(of[way]) == len(of.get(ours, ()))]
    compared = rivals if ours in survivors else []
    best = max(compared, key=lambda way: rates[way], default=None)
    speed = best and runs_ratio(
        of, best, ours, lambda rival, mine: runs[mine]["tokens_per_s"] / runs[rival]["tokens_per_s"]
    )
    rewards = [
        {"way": way} | runs_ratio(of, way, ours, lambda rival, mine: sooner(records[mine], records[rival]))
        for way in compared
    ]
    hardest = min(rewards, key=lambda ratio: ratio["value"], default=None)
    selector_runs = [runs[i] for i in of.get(ours, {}).values()]
    shares = [run["over_pace"] for run in runs if run.get("over_pace") is not None]
    figures: dict[str, Any] = {
        **interval_figures("vs_best_static", speed or None),
        **interval_figures("reward_seconds", hardest),
        "best_static": best,
        "reward_seconds_static": hardest["way"] if hardest else None,
        "survivors": [way for way in survivors if way != ours],
        "ended_for_memory": [way for way in of if way not in survivors and way != ours],
        "tokens_per_s": rates,
        "survivors_min": float(sum(way != ours for way in survivors)),
        "over_pace_max": max(shares, default=None),
        "late_passes_max": max((run["late_passes"] for run in runs), default=None),
        "oom_max": float(sum(int(run["episodes_out_of_memory"] or 0) for run in selector_runs)),
        "truncated_max": float(sum(int(run["episodes_truncated"] or 0) for run in selector_runs)),
        "switches": [int(run["switches"]) for run in selector_runs],
    }
    return {**figures, "missed": missed_goals(figures, GOALS)}


def runs_ratio(
    of: Mapping[str, Mapping[int, int]], rival: str, ours: str, ratio: Callable[[int, int], float]
) -> dict[str, Any]:
    """The mean ratio over the repetitions of both ways, with its interval. ratio: of (rival's run, ours)."""
    numbers = sorted(of[rival].keys() & of[ours].keys())
    logs = [math.log(ratio(of[rival][number], of[ours][number])) for number in numbers]
    interval = mean_interval(logs)
    bounds = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {name: None if math.isnan(value) else math.exp(value) for name, value in bounds.items()}


def interval_figures(name: str, ratio: Mapping[str, Any] | None) -> dict[str, float | None]:
    ratio = ratio or {}
    return {name: ratio.get("value"), f"{name}_low": ratio.get("low"), f"{name}_high": ratio.get("high")}


def sooner(ours: RecordedRun, rival: RecordedRun) -> float:
    """The rival's seconds until it had earned what both earn in all, over those of ours."""
    curves = [earned(run) for run in (ours, rival)]
    target = min(curve[-1][1] for curve in curves)
    mine_s, other_s = (next(time_s for time_s, reward in curve if reward >= target) for curve in curves)
    return other_s / mine_s


def earned(run: RecordedRun) -> list[tuple[float, float]]:
    """(seconds of the run, sum of the mean rewards so far) after each step of training."""
    points = run.points("reward_mean", phase=TRAIN, over="time_s")
    sums = itertools.accumulate(reward for _, reward in points)
    return [(time_s, total) for (time_s, _), total in zip(points, sums, strict=True)]


def late_passes(run: RecordedRun) -> float:
    """The part of the trainer's passes, warm-up included, that took longer than their pace; 0 without any."""
    late, paced = (math.fsum(v for _, v in run.points(key)) for key in ("late_passes", "paced_passes"))
    return late / paced if paced else 0.0


def bare_summary(bare: Sequence[Mapping[str, Any]], ours: str) -> dict[str, Any]:
    """Tokens/s of each way on the bare cores, and the selector's over the best of the others."""
    rates = {run["way"]: run["tokens_per_s"] for run in bare if run["tokens_per_s"]}
    others = {way: rate for way, rate in rates.items() if way != ours}
    best = max(others, key=lambda way: others[way], default=None)
    ratio = rates[ours] / others[best] if best and ours in rates else None
    return {"tokens_per_s": rates, "best_static": best, "vs_best_static": ratio}
