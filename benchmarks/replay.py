"""Rollout tokens until a win rate, with groups that are trained again and without, in turns over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.learning import published, to_end
from benchmarks.options import RESULTS, AsJson, Results, Seeds, whole_numbers
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted
from earl.cli.lib.figures import figures
from earl.cli.run.demo import demo_config
from earl.cli.run.launch import overrides_of
from earl.config.load import Override
from earl.config.trainer import TrainerConfig
from earl.obs.metrics import read_lines
from services.scheduler.ledger.intervals import mean_interval

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/dispatch",
    "earl/models",
    "earl/env",
    "earl/stack",
    "examples/tictactoe.toml",
)

WITHOUT, REPLAY, PASSES = "without", "replay", "passes"
ARMS = (WITHOUT, REPLAY, PASSES)
GOAL_WIN_RATE = 0.9
WINDOW_STEPS = 8
GOAL_RATIO = 0.7
COMPARES = (
    "The demo's run with replay.reuse, whose batches train on earlier groups again, with the same run "
    "without, and with trainer.passes, whose batches are trained several times at once: the honest rival. "
    "Each batch has as many new games in all three, and an optimizer step as many sequences, while as many "
    "groups are kept as a batch takes. tokens: of the games that the policy has played until the mean win "
    "rate of so many steps reaches the goal, those of the warm-up not counted; null where it does not within "
    "the steps. tokens_ratio: replay over without, the geometric mean over the seeds in which both reach the "
    "goal, with the 95 % t interval of the paired logarithms; rival_ratio: replay over passes; passes_ratio: "
    "passes over without."
)


@app.command(
    cls=RecordedOverridableCommand,
    epilog="Any key of the demo's run file: --section.key VALUE, for all runs, e.g. --trainer.lr 1e-4",
)
def replay(
    ctx: typer.Context,
    seeds: Seeds = "0,1,2,3,4",
    arms: Annotated[str, typer.Option(help=f"Runs to make of each seed: {', '.join(ARMS)}.")] = ",".join(
        ARMS
    ),
    reuse: Annotated[int, typer.Option(min=1, max=16, help="Times that a group may be trained again.")] = 2,
    passes: Annotated[int, typer.Option(min=2, help="Passes over a batch of the rival.")] = 2,
    steps: Annotated[int, typer.Option(min=WINDOW_STEPS, help="Training steps of each run.")] = 80,
    runs_dir: Annotated[str, typer.Option(help="Directory of runs instead of the run file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure how many rollout tokens a policy needs when groups are trained again, and when not.

    Each seed makes a whole run of the demo for each arm, in new processes, one after the other.
    """
    chosen = [name for name in arms.split(",") if name]
    if unknown := [name for name in chosen if name not in ARMS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: use {', '.join(ARMS)}", param_hint="arms")
    given = overrides_of(ctx, runs_dir=runs_dir)
    trainer = demo_config(0, given).trainer
    about = {
        "compares": COMPARES,
        "reuse": reuse,
        "passes": passes,
        "steps": steps,
        "goal_win_rate": GOAL_WIN_RATE,
        "window_steps": WINDOW_STEPS,
        "overrides": {key: value for key, value in given if key != "runs_dir"},
    }
    runs: list[dict[str, Any]] = []
    with published("replay", about, runs, summary, results, as_json=as_json):
        for seed in counted("seeds", whole_numbers(seeds)):
            for arm in chosen:
                config = demo_config(seed, [*overrides_for(arm, steps, reuse, passes, trainer), *given])
                outcome = to_end(config)
                lines = read_lines(Path(config.runs_dir) / config.name / "metrics.jsonl")
                runs.append({"arm": arm, **figures(outcome, seed), **until_goal(lines)})


def overrides_for(arm: str, steps: int, reuse: int, passes: int, trainer: TrainerConfig) -> list[Override]:
    """The keys of an arm's runs. trainer: of the demo, for batches of new games alone.

    With replay a batch has so many times the mini-batches, and its limit of the KL to the policies that
    sampled is as many times as large: most of its tokens are of earlier versions. Time limits nothing, or a
    busy machine would change what is compared.
    """
    of_arm: Mapping[str, list[Override]] = {
        WITHOUT: [],
        REPLAY: [
            ("replay.reuse", str(reuse)),
            ("trainer.minibatches", str((1 + reuse) * trainer.minibatches)),
            ("trainer.kl_limit", str((1 + reuse) * trainer.kl_limit)),
        ],
        PASSES: [("trainer.passes", str(passes))],
    }
    return [("scheduler.steps", str(steps)), ("scheduler.train_limit_s", "0"), *of_arm[arm]]


def until_goal(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The tokens, steps and seconds of training until the mean win rate of WINDOW_STEPS reaches the goal.

    lines: of metrics.jsonl. After a roll-back a step is there twice: the last one counts. best_win_rate: the
    best such mean of the run. replayed: trajectories that were trained again, of all steps; null before the
    goal where it was not reached.
    """
    train = {line["step"]: line for line in lines if line["phase"] == "train"}
    ordered = [train[step] for step in sorted(train)]
    best, reached = 0.0, None
    for count in range(WINDOW_STEPS, len(ordered) + 1):
        window = ordered[count - WINDOW_STEPS : count]
        mean = math.fsum(line["win_rate"] for line in window) / WINDOW_STEPS
        best = max(best, mean)
        if reached is None and mean >= GOAL_WIN_RATE:
            reached = count
    until = ordered[:reached] if reached is not None else []
    return {
        "tokens": round(math.fsum(line["tokens"] for line in until)) if until else None,
        "steps_to_goal": reached,
        "seconds_to_goal": round(until[-1]["time_s"] - ordered[0]["time_s"], 1) if until else None,
        "steps": len(ordered),
        "best_win_rate": round(best, 4),
        "replayed": round(math.fsum(line.get("replayed_sequences", 0.0) for line in ordered)),
        "kl_stopped": round(math.fsum(line.get("kl_stopped", 0.0) for line in ordered)),
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The paired ratios, the runs that did not reach the goal by arm, and the goals that are missed."""
    ratios = {
        **paired(runs, "tokens_ratio", REPLAY, WITHOUT),
        **paired(runs, "rival_ratio", REPLAY, PASSES),
        **paired(runs, "passes_ratio", PASSES, WITHOUT),
    }
    unreached = {arm: sum(run["arm"] == arm and run["tokens"] is None for run in runs) for arm in ARMS}
    ratio = ratios["tokens_ratio"]
    met = ratio is not None and ratio <= GOAL_RATIO and not unreached[REPLAY]
    return {**ratios, "unreached": unreached, "missed": [] if met else ["tokens_ratio"]}


def paired(runs: Sequence[Mapping[str, Any]], name: str, arm: str, base: str) -> dict[str, Any]:
    """The ratio of two arms' tokens, its interval, and the number of seeds in which both reached the goal."""
    tokens = {(run["arm"], run["seed"]): run["tokens"] for run in runs}
    pairs = [
        (tokens[arm, seed], tokens[base, seed])
        for seed in dict.fromkeys(run["seed"] for run in runs)
        if tokens.get((arm, seed)) and tokens.get((base, seed))
    ]
    interval = mean_interval([math.log(value / other) for value, other in pairs])
    bounds = {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    known = {key: None if math.isnan(value) else round(math.exp(value), 4) for key, value in bounds.items()}
    return {**known, f"{name}_seeds": len(pairs)}
