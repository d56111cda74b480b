"""A run whose devices follow a load that drifts, against every static division of the same devices.

round 1   the pool ─► the seven static divisions, the even one first; one that takes LONGEST times the best's
          seconds is stopped there: it cannot be the best any more
round 2…  the pool and the quickest static divisions, in turns, each round with a seed of its own
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from benchmarks.goals import missed_goals
from benchmarks.growing_context import one_run
from benchmarks.learning import published
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.paced_growth import interval_figures, runs_ratio
from benchmarks.pool_layouts import compare_layouts
from benchmarks.pool_runs import kept_figures, middle, run_figures
from benchmarks.record.checkout import ROOT
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted
from earl.cli.run.launch import overrides_of
from earl.config.load import Override, load_run
from earl.config.paced_check import paced_text
from earl.config.run import RunConfig
from earl.errors import ConfigError, ProcessFailed
from services.scheduler.selector.split_policy import Split, SplitWork, step_s

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/dispatch",
    "earl/models",
    "earl/env",
    "earl/stack",
    "earl/pacing",
    "examples/pool.toml",
    "examples/pool_layouts.toml",
    "benchmarks/pool.py",
    "benchmarks/pool_layouts.py",
    "benchmarks/pool_runs.py",
)
RUN_FILE = ROOT / "examples" / "pool.toml"
COMPARES = (
    "SIMULATED TIMES: the run file's devices are paced (docs/paced.md); services, data plane, ledger, moves, "
    "weights and sampling are real. Seconds of training of one run file, from the end of its first step to "
    "the end of its last one: with devices that move between rollout and trainer by the scheduler's own "
    "decisions, moves included, and in every static division of the same devices. The tasks of the mixture "
    "drift, and with them the best division. vs_best_static: seconds of the best of all static divisions "
    "over those of the pool, in rounds of one seed, with a 95 % interval of the logarithm (Student's t). "
    "Round 1 runs all; a static division is stopped there once it has taken so much longer than the best "
    "that it cannot be it. Later rounds run the pool and the quickest ones. limit: what the best division in "
    "each step, without moves, would gain over that static one, by the work that its run measured; "
    "share_of_limit: the part of that gain that the pool reached. lost_max: episodes that were dropped, or "
    "ended for lack of memory, in any whole run; unaccounted_max: those that the ledger cannot account for."
)
GOALS = {
    "vs_best_static": 1.25,
    "vs_best_static_low": 1.0,
    "over_pace_max": 0.05,
    "lost_max": 0.0,
    "unaccounted_max": 0.0,
    "rolled_back_max": 0.0,
}
OURS = "pool"
# Times the best division's seconds at which another one is stopped.
LONGEST = 1.15
# Static divisions that later rounds repeat.
REPEATED = 2
# Rounds where nobody says how many.
REPETITIONS, LAYOUTS_REPETITIONS = 3, 2


@app.command(
    cls=RecordedOverridableCommand,
    epilog="Any key of examples/pool.toml (with --layouts: pool_layouts.toml): --section.key VALUE, "
    "e.g. --scheduler.steps 40",
)
def pool(
    ctx: typer.Context,
    repetitions: Annotated[
        int | None,
        typer.Option(min=2, help="Runs of the pool and of its best rivals: 3, with --layouts 2."),
    ] = None,
    layouts: Annotated[
        bool,
        typer.Option("--layouts", help="Divisions and layouts decided together, against divisions alone."),
    ] = False,
    runs_dir: Annotated[str, typer.Option(help="Directory of runs instead of the run file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Compare devices that move between rollout and trainer with every static division of them."""
    given = overrides_of(ctx, runs_dir=runs_dir)
    if layouts:
        compare_layouts(given, repetitions or LAYOUTS_REPETITIONS, results, as_json=as_json)
        return
    config = load_run(RUN_FILE, given)
    ways = ways_of(config)
    runs: list[dict[str, Any]] = []

    def once(way: str, number: int, *keys: Override) -> None:
        overrides = [*given, *ways[way], ("seed", str(config.seed + number)), *keys]
        record = one_run(RUN_FILE, overrides, way)
        runs.append({"way": way, "repetition": number, **run_figures(record)})
        if record.failure:
            raise ProcessFailed(
                f"the run {record.directory.name} failed: {record.failure.get('message')}",
                "a comparison without it says nothing; find the cause, and begin anew",
            )

    about = {
        "compares": COMPARES,
        "paced": paced_text(config),
        "goals": GOALS,
        "settings": config.model_dump(mode="json", exclude={"name", "runs_dir"}, exclude_defaults=True),
    }
    with published("pool", about, runs, lambda _: summary(runs), results, as_json=as_json):
        for way in counted("runs, each way once", list(ways)):
            done = [run["train_s"] for run in runs if run["whole"] and run["way"] != OURS]
            once(way, 0, *([("scheduler.train_limit_s", f"{LONGEST * min(done):.0f}")] if done else []))
        kept = [OURS, *quickest(runs)]
        turns = [
            (way, number)
            for number in range(1, repetitions or REPETITIONS)
            for way in kept[:: (-1) ** number]
        ]
        for way, number in counted("runs of the pool and of its best rivals", turns):
            once(way, number)


def ways_of(config: RunConfig) -> dict[str, list[Override]]:
    """The pool, and the static divisions of its devices, the most even ones first. Raises ConfigError for a
    run file without a pool of paced devices."""
    devices = config.stack.pool_devices
    if not devices or config.pace is None:
        raise ConfigError(
            f"{RUN_FILE.name} has no pool of paced devices, which this compares",
            "give it stack.pool_devices and paced.table",
        )
    ways: dict[str, list[Override]] = {OURS: [("scheduler.selector", "on")]}
    for rollout in sorted(range(1, devices), key=lambda rollout: abs(2 * rollout - devices)):
        # An observer writes down what it would decide, and moves nothing.
        ways[split_text((rollout, devices - rollout))] = [
            ("scheduler.selector", "observe"),
            ("rollout.engines", str(rollout)),
            ("trainer.ranks", str(devices - rollout)),
        ]
    return ways


def split_text(split: Split) -> str:
    return f"{split[0]}:{split[1]}"


def quickest(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The static divisions that were quickest in round 1, REPEATED at most."""
    whole = [run for run in runs if run["whole"] and run["way"] != OURS]
    return [run["way"] for run in sorted(whole, key=lambda run: run["train_s"])[:REPEATED]]


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures and the goals that they miss."""
    of: dict[str, dict[int, int]] = {}
    for index, run in enumerate(runs):
        of.setdefault(run["way"], {})[run["repetition"]] = index
    whole = {way: all(runs[i]["whole"] for i in places.values()) for way, places in of.items()}
    seconds = {
        way: statistics.fmean(runs[i]["train_s"] or 0.0 for i in places.values())
        for way, places in of.items()
    }
    rounds = len(of.get(OURS, ()))
    rivals = [way for way in of if way != OURS and whole[way] and len(of[way]) == rounds]
    best = min(rivals, key=lambda way: seconds[way], default=None) if whole.get(OURS) else None
    ratio = best and runs_ratio(
        of, best, OURS, lambda rival, ours: runs[rival]["train_s"] / runs[ours]["train_s"]
    )
    bound = limit([runs[i] for i in of[best].values()], best) if best else None
    gain = ratio["value"] if ratio else None
    figures: dict[str, Any] = {
        **interval_figures("vs_best_static", ratio or None),
        "best_static": best,
        "limit": bound,
        "share_of_limit": (gain - 1) / (bound - 1) if gain and bound and bound > 1 else None,
        "train_s": seconds,
        "stopped": [way for way in of if not whole[way]],
        "moves": [len(runs[i]["moves"]) for i in of.get(OURS, {}).values()],
        "move_s": middle([move["seconds"] for run in runs for move in run["moves"]]),
        "move_stall_s": middle([move["stall_s"] for run in runs for move in run["moves"]]),
        **kept_figures(runs),
    }
    return {**figures, "missed": missed_goals(figures, GOALS)}


def limit(runs: Sequence[Mapping[str, Any]], way: str) -> float | None:
    """Returns what the best division in each step gains over a static one, by the work its runs measured;
    None if they measured none."""
    rollout, trainer = map(int, way.split(":"))
    works = [SplitWork(work[1], work[2]) for run in runs for work in run["works"]]
    splits = [(count, rollout + trainer - count) for count in range(1, rollout + trainer)]
    free_s = sum(min(step_s(work, split) for split in splits) for work in works)
    return sum(step_s(work, (rollout, trainer)) for work in works) / free_s if free_s else None
