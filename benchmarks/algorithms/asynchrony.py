"""The cost of a plan that fixes every bit of an asynchronous run, and whether kills change a bit of it.

staleness 2, two switches     ┌─► planned: the run file names versions and switches ─► digests ┐
the same kernels, in turns ───┼─► free: timing decides, an operator switches                   ├─► equal?
                              └─► planned, three processes killed ─────────────────► digests ──┘
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from benchmarks.algorithms.bounded_run import bounded_run
from benchmarks.algorithms.command import BASE
from benchmarks.algorithms.small_demo import small_demo
from benchmarks.algorithms.step_actions import StepAction, kill, switch
from benchmarks.goals import missed_goals
from benchmarks.learning import published
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted
from earl.cli.run.launch import overrides_of
from earl.config.load import Override
from earl.errors import EarlError
from earl.obs.metrics import read_lines
from earl.stack.rundir import free_name

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/config/layout_plan.py",
    "earl/dispatch",
    "earl/models",
    "earl/env",
    "earl/stack",
    "examples/tictactoe.toml",
    "benchmarks/algorithms",
)
STEPS, REPEATS = 24, 3
# A run that takes longer is stopped.
LIMIT_S = 300.0
# The most that a planned run may take for a step, in those of a free one.
RATIO = 1.15
# Before these steps both stages go from two replicas to one of two devices.
SWITCHES = ((9, "rollout"), (17, "trainer"))
# Within each switch something dies, and the scheduler after both.
KILLS = ((8, "rollout-0"), (16, "trainer"), (20, "scheduler"))
SETTINGS: Sequence[Override] = (
    *BASE,
    ("rollout.engines", "2"),
    ("rollout.threads", "1"),
    # Both ways of switching find processes that are ready.
    ("rollout.standby", "true"),
    ("trainer.ranks", "2"),
    ("trainer.threads", "1"),
    ("trainer.checkpoint_every", "5"),
    ("warmup.batches", "2"),
    ("warmup.batch_episodes", "256"),
    ("warmup.minibatches", "8"),
    ("scheduler.batch_groups", "16"),
    ("scheduler.steps", str(STEPS)),
    ("scheduler.staleness", "2"),
    ("scheduler.train_limit_s", "0"),
    ("scheduler.selector", "static"),
    ("evaluation.episodes", "0"),
    ("dashboard.bind", ""),
)
PLAN = json.dumps([f"{step} {stage} tp=2" for step, stage in SWITCHES])
ARMS: Mapping[str, Sequence[Override]] = {
    "planned": [("deterministic", "true"), ("switch.plan", PLAN)],
    "free": [("deterministic", "kernels")],
}
ACTIONS: Mapping[str, Sequence[StepAction]] = {
    "planned": (),
    "free": [StepAction(step - 1, switch(stage, tp=2)) for step, stage in SWITCHES],
}
KILL_ACTIONS = [StepAction(step, kill(name)) for step, name in KILLS]
COMPARES = (
    "Runs of the demo's environment with scheduler.staleness = 2, two engines and two trainer ranks of one "
    "thread each, in turns. planned: deterministic = true with switch.plan, so versions, batches and two "
    'switches follow from the run file. free: deterministic = "kernels", the same arithmetic, and timing '
    "decides the rest; an operator asks for the same two switches once the step before has ended. Each "
    f"switch goes from two replicas to one of tp = 2: rollout before step {SWITCHES[0][0]}, trainer before "
    f"step {SWITCHES[1][0]}. step_s: seconds from the end of the first training step to the end of the "
    "last, switches included, over the steps between; only planned runs compute digests, which is in it. "
    "ratio: of planned to free in one repeat; ratio_max: the median over repeats, which has the goal. "
    "digests_equal: weights after every step, warm-up included, are the same bits in all planned runs and in "
    "one whose rollout worker, trainer and scheduler are killed, the first two within a switch; all runs are "
    "complete, each planned one switched, and every step changed the weights, but for those that kl_limit "
    "ended (`stopped`: their versions)."
)


@app.command(
    cls=RecordedOverridableCommand,
    epilog="Example: earl bench asynchrony --repeats 1. Any key of examples/tictactoe.toml: "
    "--section.key VALUE",
)
def asynchrony(
    ctx: typer.Context,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each arm, in turns.")] = REPEATS,
    runs_dir: Annotated[str, typer.Option(help="Directory of runs instead of the run file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Compare asynchronous runs whose bits are planned with free ones, and planned ones with kills."""
    given = overrides_of(ctx, runs_dir=runs_dir)
    # Before anything is run: what is wrong on the command line ends it.
    for keys in ARMS.values():
        small_demo([*SETTINGS, *keys, *given])
    rows: list[dict[str, Any]] = []
    about = {"compares": COMPARES, "goals": GOALS, "repeats": repeats, "plan": json.loads(PLAN)}
    with published("asynchrony", about, rows, summary, results, as_json=as_json):
        rows.append(one_run("planned", "killed", given, KILL_ACTIONS))
        for repeat in counted("repeats", range(1, repeats + 1)):
            # What comes first in a repeat comes second in the next.
            for arm in sorted(ARMS, reverse=repeat % 2 == 1):
                rows.append(one_run(arm, str(repeat), given, ACTIONS[arm]))


def one_run(arm: str, name: str, given: Sequence[Override], actions: Sequence[StepAction]) -> dict[str, Any]:
    """The figures of a whole run; a failure is a figure, too. name: "killed", or the number of its repeat."""
    row = {"arm": arm, "name": name, "directory": "", "digests": {}, "stopped": [], "step_s": None}
    row["switches"] = []
    try:
        config = small_demo([*SETTINGS, *ARMS[arm], *given])
    except EarlError as error:
        return {**row, "failure": str(error)}
    config = config.model_copy(update={"name": free_name(config, f"asynchrony-{arm}-{name}")})
    ended = bounded_run(config, LIMIT_S, actions)
    lines = list(read_lines(ended.directory / "metrics.jsonl"))
    switches = read_lines(ended.directory / "switches.jsonl")
    trained = {line["step"]: line["time_s"] for line in lines if line["phase"] == "train"}
    failure = ended.failure
    if not failure and len(trained) != config.scheduler.steps:
        failure = f"{len(trained)} of {config.scheduler.steps} steps have figures"
    return {
        **row,
        "directory": ended.directory.name,
        "digests": digests_of(lines),
        "stopped": sorted({line["version"] for line in lines if line.get("kl_stopped")}),
        "step_s": step_seconds(trained),
        "switches": [
            {key: line[key] for key in ("stage", "by", "rolled_back", "stall_s", "seconds")}
            for line in switches
        ],
        "seconds": round(ended.seconds, 1),
        "failure": failure,
    }


def digests_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Digests of the weights by version: one, unless a step that was trained again made others."""
    digests: dict[str, list[float]] = {}
    for line in lines:
        if (digest := line.get("weights_digest")) is not None:
            known = digests.setdefault(str(line["version"]), [])
            known += [digest] if digest not in known else []
    return digests


def step_seconds(trained: Mapping[int, float]) -> float | None:
    """Seconds a step, from the end of the first to the end of the last. trained: end by step."""
    if len(trained) < 2:
        return None
    first, last = min(trained), max(trained)
    return round((trained[last] - trained[first]) / (last - first), 4)


GOALS: Mapping[str, float] = {"ratio_max": RATIO, "digests_equal": 1.0, "kills": float(len(KILLS))}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """ratio_max: the median of `ratios`; ratio_low and ratio_high: the smallest and largest of them."""
    pairs: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["name"] != "killed" and not row["failure"] and row["step_s"]:
            pairs.setdefault(row["name"], {})[row["arm"]] = row["step_s"]
    ratios = [
        round(pair["planned"] / pair["free"], 4) for pair in pairs.values() if pair.keys() == ARMS.keys()
    ]
    steps_s = {arm: [pair[arm] for pair in pairs.values() if arm in pair] for arm in ARMS}
    planned = [row for row in rows if row["arm"] == "planned"]
    killed = [row for row in planned if row["name"] == "killed" and not row["failure"]]
    figures = {
        "step_s": {arm: statistics.median(each) if each else None for arm, each in steps_s.items()},
        "ratios": ratios,
        "ratio_max": statistics.median(ratios) if ratios else None,
        "ratio_low": min(ratios, default=None),
        "ratio_high": max(ratios, default=None),
        "digests_equal": float(len(killed) == 1 and len(planned) > 1 and _are_equal(planned)),
        "kills": float(len(KILLS) * len(killed)),
        "failures": [f"{row['arm']} {row['name']}: {row['failure']}" for row in rows if row["failure"]],
    }
    return {**figures, "missed": missed_goals(figures, GOALS)}


def _are_equal(planned: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether all planned runs are whole, switched, and have the same weights after every step."""
    first = planned[0]["digests"]
    return _moves(first, planned[0]["stopped"]) and all(
        not row["failure"]
        and row["digests"] == first
        and {line["stage"] for line in row["switches"] if not line["rolled_back"]} >= {"rollout", "trainer"}
        for row in planned
    )


def _moves(digests: Mapping[str, Sequence[float]], stopped: Sequence[int]) -> bool:
    """Returns whether each step made other weights, but for those that ended at their limit of the KL."""
    weights = {int(version): each[0] for version, each in digests.items()}
    still = {v for v, digest in weights.items() if weights.get(v - 1) == digest} - set(stopped)
    return not still and len(set(weights.values())) > len(stopped)
