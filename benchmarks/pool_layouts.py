"""Devices that move together with the layouts of their stages, against devices that move alone, and against
the best static division with the best static layouts.

round 1   joint ─► apart ─► the STATICS static ones that the joint run's own work predicts to be quickest
round 2…  joint, apart and the quickest static one, in turns, each round with a seed of its own
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.goals import missed_goals
from benchmarks.growing_context import one_run
from benchmarks.learning import published
from benchmarks.paced_growth import interval_figures, runs_ratio
from benchmarks.pool_runs import kept_figures, middle, run_figures
from benchmarks.record.checkout import ROOT
from benchmarks.record.progress import counted
from earl import pacing
from earl.cli.lib.splits import read_splits
from earl.cli.report.curves import TRAIN
from earl.cli.report.data import RecordedRun
from earl.config.load import Override, load_run
from earl.config.paced_check import paced_text
from earl.config.run import RunConfig
from earl.errors import ConfigError, ProcessFailed
from earl.obs.metrics import read_lines
from earl.pacing.pace import Pace
from earl.parallelism import ROLLOUT, TRAINER, Parallelism
from services.scheduler.profile.rows import dump, parse

RUN_FILE = ROOT / "examples" / "pool_layouts.toml"
COMPARES = (
    "SIMULATED TIMES: the run file's devices are paced (docs/paced.md); services, data plane, ledger, moves, "
    "weights and sampling are real. Seconds of training of one run file, from the end of its first step to "
    "the end of its last one, moves included. joint: division and layouts are one decision, by a profile "
    "that is off the table which paces the devices by up to 10 % in each row, at random. apart: the same run "
    "without a profile: devices move, and stages keep the replicas that they begin with. static: a division "
    "and layouts that never change; of all static ones those run that the device-seconds of the joint run's "
    "steps, scaled by the table to other layouts, predict to be quickest, and the quickest of them is the "
    "rival. vs_apart and vs_best_static: seconds of the rival over those of joint, in rounds of one seed, "
    "with a 95 % interval of the logarithm (Student's t). The load is made for it: short sequences, for "
    "which replicas of one device are the quickest and rollout has most of the work, become long ones, for "
    "which replicas of two are quicker and the trainer has most of it."
)
GOALS = {
    "vs_apart": 1.15,
    "vs_best_static": 1.15,
    "wide_moves_min": 1.0,
    "over_pace_max": 0.05,
    "lost_max": 0.0,
    "unaccounted_max": 0.0,
    "rolled_back_max": 0.0,
}
JOINT, APART = "joint", "apart"
# Static divisions with layouts that round 1 runs.
STATICS = 2
# What a row of joint's profile is off by at most: what a run decides by is not the world.
NOISE = 0.1
# Sequences of a replica for which the table is asked about ratios between layouts.
SHARE = 16.0
# The layouts of rollout and trainer.
StaticLayouts = tuple[Parallelism, Parallelism]


class MeasuredStep(NamedTuple):
    """A measured step: tokens of its mean sequence, device-seconds by stage and the layouts they were
    measured in."""

    mean_tokens: float
    device_s: tuple[float, float]
    layouts: StaticLayouts


def compare_layouts(given: Sequence[Override], repetitions: int, results: Path, *, as_json: bool) -> None:
    """Runs and publishes the comparison. Raises ConfigError for a run file without a pool of paced devices,
    ProcessFailed for a run that failed."""
    config = load_run(RUN_FILE, list(given))
    pace = _pace_of(config)
    ways: dict[str, list[Override]] = {APART: [("scheduler.selector", "on")]}
    runs: list[dict[str, Any]] = []

    def once(way: str, number: int) -> RecordedRun:
        record = one_run(RUN_FILE, [*given, *ways[way], ("seed", str(config.seed + number))], way)
        wide = wide_moves(list(read_lines(record.directory / "moves.jsonl")))
        runs.append({"way": way, "repetition": number, **run_figures(record), "wide_moves": wide})
        if record.failure:
            raise ProcessFailed(
                f"the run {record.directory.name} failed: {record.failure.get('message')}",
                "a comparison without it says nothing; find the cause, and begin anew",
            )
        if way == APART and any("layouts" in line["candidates"][0] for line in read_splits(record.directory)):
            raise ProcessFailed(
                f"the run {record.directory.name} has decided by a profile that earl profile kept for it",
                "remove that profile: apart is the run without one",
            )
        return record

    about = {
        "compares": COMPARES,
        "paced": paced_text(config),
        "goals": GOALS,
        "settings": config.model_dump(mode="json", exclude={"name", "runs_dir"}, exclude_defaults=True),
    }
    with (
        TemporaryDirectory() as directory,
        published("pool-layouts", about, runs, lambda _: layouts_summary(runs), results, as_json=as_json),
    ):
        profile = Path(directory) / "profile.csv"
        profile.write_text(noisy_profile(config), encoding="utf-8")
        ways[JOINT] = [("scheduler.selector", "on"), ("scheduler.profile", str(profile))]
        works = step_works(once(JOINT, 0))
        once(APART, 0)
        for layouts in quickest_layouts(works, static_layouts(config, pace), pace):
            ways[static_name(layouts)] = static_keys(config, layouts)
            once(static_name(layouts), 0)
        kept = [JOINT, APART, *_statics(runs)[:1]]
        turns = [(way, number) for number in range(1, repetitions) for way in kept[:: (-1) ** number]]
        for way, number in counted("runs of all three", turns):
            once(way, number)


def _pace_of(config: RunConfig) -> Pace:
    if not config.stack.pool_devices or config.pace is None:
        raise ConfigError(
            f"{RUN_FILE.name} has no pool of paced devices, which this compares",
            "give it stack.pool_devices and paced.table",
        )
    return config.pace


def noisy_profile(config: RunConfig) -> str:
    """The table that paces the run's devices as a profile of them, each row off by up to NOISE, always the
    same for a seed."""
    packaged = Path(pacing.__file__).parent / "tables" / f"{config.paced.table}.csv"
    path = packaged if packaged.is_file() else Path(config.paced.table).expanduser()
    draw = random.Random(config.seed)
    return dump(
        row
        if row.tokens_per_device_s is None
        else replace(row, tokens_per_device_s=row.tokens_per_device_s * draw.uniform(1 - NOISE, 1 + NOISE))
        for row in parse(path.read_text(encoding="utf-8"), str(path))
    )


def static_layouts(config: RunConfig, pace: Pace) -> list[StaticLayouts]:
    """Every division of the devices with every layout of rollout and trainer that the table has."""

    def layouts(stage: str, devices: int) -> list[Parallelism]:
        known = (Parallelism(1, *replica).over(devices) for replica in pace.table.replicas(stage))
        return [layout for layout in known if layout is not None]

    pool = config.stack.pool_devices
    return [
        each
        for devices in range(1, pool)
        for each in product(layouts(ROLLOUT, devices), layouts(TRAINER, pool - devices))
    ]


def static_name(layouts: StaticLayouts) -> str:
    return " / ".join(map(str, layouts))


def static_keys(config: RunConfig, layouts: StaticLayouts) -> list[Override]:
    """The overrides of a division and layouts that never change."""
    rollout, trainer = layouts
    sequences = config.rollout.max_sequences * rollout.tp // config.rollout.tp
    return [
        ("scheduler.selector", "static"),
        ("rollout.engines", str(rollout.dp)),
        ("rollout.tp", str(rollout.tp)),
        ("rollout.max_sequences", str(sequences)),
        ("trainer.ranks", str(trainer.devices)),
        ("trainer.tp", str(trainer.tp)),
        ("trainer.cp", str(trainer.cp)),
    ]


def step_works(run: RecordedRun) -> list[MeasuredStep]:
    """The measured steps of a run with a profile, from its decisions."""
    lengths = dict(run.points("length_mean", phase=TRAIN))
    works: list[MeasuredStep] = []
    for line in read_splits(run.directory):
        here = line["here"]
        used = next(each for each in line["candidates"] if all(each[name] == here[name] for name in here))
        mean_tokens = lengths.get(line["step"] - 1)
        if mean_tokens and "layouts" in used:
            rollout, trainer = (Parallelism.parse(used["layouts"][stage]) for stage in (ROLLOUT, TRAINER))
            device_s = line["rollout_device_s"], line["trainer_device_s"]
            works.append(MeasuredStep(mean_tokens, device_s, (rollout, trainer)))
    return works


def quickest_layouts(
    works: Sequence[MeasuredStep], statics: Sequence[StaticLayouts], pace: Pace
) -> list[StaticLayouts]:
    """The static divisions and layouts with the least predicted seconds, STATICS at most."""
    return sorted(statics, key=lambda layouts: predicted_s(works, layouts, pace))[:STATICS]


def predicted_s(works: Sequence[MeasuredStep], layouts: StaticLayouts, pace: Pace) -> float:
    """Seconds of the measured steps in other layouts: all stages work at once, the slowest decides."""

    def stage_s(work: MeasuredStep, place: int, stage: str) -> float:
        tokens = work.mean_tokens * pace.scale.tokens

        def device_s(layout: Parallelism) -> float:
            token_s = pace.table.token_s(stage, layout.replica, tokens, SHARE)
            return token_s * math.prod(layout.replica)

        ratio = device_s(layouts[place]) / device_s(work.layouts[place])
        return work.device_s[place] * ratio / layouts[place].devices

    return sum(
        max(stage_s(work, place, stage) for place, stage in enumerate((ROLLOUT, TRAINER))) for work in works
    )


def wide_moves(moves: Sequence[Mapping[str, Any]]) -> int:
    """The moves after which a stage had replicas of several devices."""
    held = ([Parallelism.parse(text) for text in move.get("layouts", {}).values()] for move in moves)
    return sum(any(math.prod(layout.replica) > 1 for layout in layouts) for layouts in held)


def _statics(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The static ways that trained every step in round 1, the quickest first."""
    whole = [run for run in runs if run["whole"] and run["way"] not in (JOINT, APART)]
    first = [run for run in whole if run["repetition"] == 0]
    return [run["way"] for run in sorted(first, key=lambda run: run["train_s"])]


def layouts_summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures and the goals that they miss."""
    of: dict[str, dict[int, int]] = {}
    for index, run in enumerate(runs):
        if run["whole"]:
            of.setdefault(run["way"], {})[run["repetition"]] = index
    best = next(iter(_statics(runs)), None)

    def ratio(way: str | None) -> Mapping[str, Any] | None:
        if way not in of or JOINT not in of:
            return None
        return runs_ratio(of, way, JOINT, lambda rival, ours: runs[rival]["train_s"] / runs[ours]["train_s"])

    joint = [runs[index] for index in of.get(JOINT, {}).values()]
    figures: dict[str, Any] = {
        **interval_figures("vs_apart", ratio(APART)),
        **interval_figures("vs_best_static", ratio(best)),
        "best_static": best,
        "train_s": {
            way: statistics.fmean(runs[index]["train_s"] for index in places.values())
            for way, places in of.items()
        },
        "moves": [len(run["moves"]) for run in joint],
        "wide_moves_min": float(min((run["wide_moves"] for run in joint), default=0)),
        "move_s": middle([move["seconds"] for run in runs for move in run["moves"]]),
        "move_stall_s": middle([move["stall_s"] for run in runs for move in run["moves"]]),
        **kept_figures(runs),
    }
    return {**figures, "missed": missed_goals(figures, GOALS)}
