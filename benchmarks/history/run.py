"""A whole run with histories and without them: seconds of rollout in each step, and the same weights.

digests   a deterministic run with drafts and one without ─► the weights after each step
speed     rounds of one run each, in turns, every round with a seed of its own
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
from benchmarks.record.checkout import ROOT
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted
from earl.cli.report.curves import TRAIN
from earl.cli.report.data import RecordedRun
from earl.cli.run.launch import overrides_of
from earl.config.load import Override, load_run
from earl.draft_figures import ACCEPTED, DRAFTED, TOKENS
from earl.draft_figures import STEPS as FORWARDS
from earl.errors import ProcessFailed

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/models",
    "earl/env",
    "earl/stack",
    "examples/smollm2_tool.toml",
    "benchmarks/history/run.py",
)
RUN_FILE = ROOT / "examples" / "smollm2_tool.toml"
COMPARES = (
    "A whole run of examples/smollm2_tool.toml over a set of 16 tasks, four in each step, so that each "
    "comes again in every epoch of four steps; 32 episodes a step, 16 at once, sampling and training in "
    "turns. with: drafts from all sources, and groups with the longest predictions first. without: "
    "neither. Rounds have a seed each, and the order of both turns round. rollout_speedup: seconds a step "
    "in which the engine generated, warm-up left out, without over with, with a 95 % interval of the "
    "logarithm (Student's t); step_speedup: the same of whole steps. digest_equal: two runs with "
    "deterministic = true, with and without, have the same weights after each step, and drafts were "
    "accepted."
)
GOALS = {"digest_equal": 1.0}
WITHOUT, WITH = "without", "with"
WAYS: Mapping[str, Sequence[Override]] = {
    WITHOUT: [("rollout.drafts", "[]"), ("scheduler.length_order", "drawn")],
    WITH: [
        ("rollout.drafts", '["task", "environment", "context"]'),
        ("scheduler.length_order", "planned"),
    ],
}
# A set that comes again soon, and more episodes in a batch than are played at once.
SETTINGS: Sequence[Override] = (
    ("environment.instances", "16"),
    ("environment.held_out", "0"),
    # Drafts take what sequences leave of the engine's rows.
    ("rollout.max_sequences", "64"),
    ("rollout.episodes", "16"),
    ("warmup.batch_episodes", "64"),
    ("scheduler.selector", "static"),
    ("scheduler.batch_groups", "4"),
    ("scheduler.staleness", "0"),
    ("scheduler.train_limit_s", "0"),
    ("evaluation.episodes", "0"),
)
STEPS, DIGEST_STEPS = 10, 6


@app.command(
    cls=RecordedOverridableCommand,
    epilog="Any key of examples/smollm2_tool.toml: --section.key VALUE, e.g. --scheduler.steps 20",
)
def rollout_history(
    ctx: typer.Context,
    rounds: Annotated[int, typer.Option(min=2, help="Runs with histories, and without.")] = 3,
    runs_dir: Annotated[str, typer.Option(help="Directory of runs instead of the run file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Compare whole runs with drafts and predicted lengths with runs without."""
    given = [*SETTINGS, ("scheduler.steps", str(STEPS)), *overrides_of(ctx, runs_dir=runs_dir)]
    config = load_run(RUN_FILE, given)
    runs: list[dict[str, Any]] = []

    def once(way: str, number: int, *keys: Override) -> dict[str, Any]:
        overrides = [*given, *WAYS[way], ("seed", str(config.seed + number)), *keys]
        record = one_run(RUN_FILE, overrides, f"history-{way}")
        if record.failure:
            raise ProcessFailed(
                f"the run {record.directory.name} failed: {record.failure.get('message')}",
                "a comparison without it says nothing; find the cause, and begin anew",
            )
        return {"way": way, "round": number, **run_figures(record)}

    digests: list[dict[str, Any]] = []
    settings = config.model_dump(mode="json", exclude={"name", "runs_dir"}, exclude_defaults=True)
    about = {
        "compares": COMPARES,
        "goals": GOALS,
        "settings": settings,
        "digest_runs": digests,
    }
    with published(
        "rollout-history", about, runs, lambda _: summary(runs, digests), results, as_json=as_json
    ):
        turns = [(way, number) for number in range(rounds) for way in list(WAYS)[:: (-1) ** number]]
        for way, number in counted("runs with histories and without", turns):
            runs.append(once(way, number))
        exact = (("deterministic", "true"), ("scheduler.steps", str(DIGEST_STEPS)))
        for way in counted("deterministic runs", list(WAYS)):
            digests.append(once(way, 0, *exact))


def run_figures(run: RecordedRun) -> dict[str, Any]:
    """The figures of a run, its warm-up left out.

    rollout_s: a step's seconds in which the engine generated; step_s: a step's seconds; idle: the part of
    them in which it did not; tokens_a_step: that a sequence got of a step of its engine; digests: of
    the weights after each step, if the run is deterministic.
    """
    ends_s = [value for _, value in run.points("time_s", phase=TRAIN)]
    warm_s = max((value for _, value in run.points("time_s", phase="warmup")), default=0.0)
    busy_s = sum(
        end_s - start_s
        for spans in run.spans.values()
        for what, start_s, end_s in spans
        if what == "generate" and start_s >= warm_s
    )
    counts = {name: last(run, name) for name in (DRAFTED, ACCEPTED)}
    forwards, tokens = last(run, FORWARDS), last(run, TOKENS)
    return {
        "directory": run.directory.name,
        "steps": len(ends_s),
        "rollout_s": busy_s / len(ends_s),
        "step_s": (max(ends_s) - warm_s) / len(ends_s),
        "idle": mean(run, "engines_idle_fraction"),
        "tokens": sum(value for _, value in run.points("tokens", phase=TRAIN)),
        "reward": mean(run, "reward_mean"),
        **counts,
        "tokens_a_step": tokens / forwards if tokens and forwards else None,
        "prediction_factor": last(run, "length_prediction_factor"),
        "digests": [value for _, value in run.points("weights_digest", phase=TRAIN)],
    }


def mean(run: RecordedRun, key: str) -> float | None:
    """The mean of a figure over the steps that have it."""
    values = [value for _, value in run.points(key, phase=TRAIN)]
    return statistics.fmean(values) if values else None


def last(run: RecordedRun, key: str) -> float | None:
    """A figure of the last step that has it."""
    return next((value for _, value in reversed(run.points(key, phase=TRAIN))), None)


def summary(runs: Sequence[Mapping[str, Any]], digests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ratios, and the goals that are missed."""
    of: dict[str, dict[int, int]] = {}
    for index, run in enumerate(runs):
        of.setdefault(run["way"], {})[run["round"]] = index
    figures: dict[str, Any] = {"digest_equal": None}
    for name in ("rollout", "step"):
        key = f"{name}_s"
        ratio = None
        if of.get(WITH) and of.get(WITHOUT):
            ratio = runs_ratio(
                of, WITHOUT, WITH, lambda rival, ours, key=key: runs[rival][key] / runs[ours][key]
            )
        figures |= interval_figures(f"{name}_speedup", ratio)
    by_way = {run["way"]: run["digests"] for run in digests}
    if len(by_way) == len(WAYS):
        figures["digest_equal"] = float(
            len(by_way[WITH]) == DIGEST_STEPS
            and by_way[WITH] == by_way[WITHOUT]
            and any(run.get(ACCEPTED) for run in digests)
        )
    return {**figures, "missed": missed_goals(figures, GOALS)}
