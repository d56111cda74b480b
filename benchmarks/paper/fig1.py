"""Fig. 1: length and success over steps under a hard limit of the context, under a price on length, and free.

    relay, 1 to 20 turns by the task ─┬─► limit: one layout, contexts end where its devices' memory ends
                                      ├─► penalty: the same, and turns near the limit cost reward
                                      └─► EARL: the same devices, no limit, layouts change while they work

An agent that learns plays longer episodes, because each right answer is followed by another turn.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.growing_context import EXAMPLE, one_run, run_figures
from benchmarks.paper.figure import PaperFigure
from benchmarks.paper.settings import PaperSettings
from benchmarks.record.progress import counted
from earl.cli.report.curves import TRAIN
from earl.cli.report.data import RecordedRun
from earl.config.load import Override, load_run
from earl.errors import ConfigError
from earl.models.create import create_model
from earl.parallelism import Parallelism
from services.scheduler.parallelism.legal_layouts import LegalLayouts

FREE, LIMIT, PENALTY = "earl", "limit", "penalty"
ARMS = (FREE, LIMIT, PENALTY)
SEEDS = (0, 1, 2)
STEPS, EPISODES, LR = 45, 256, 4e-4
# Turns of a task are drawn from LEAST_TURNS to MOST_TURNS; each takes as many tokens as digits, and four.
# They are half of the run file's, in half of its memory: nine whole runs then take less than an hour.
LEAST_TURNS, MOST_TURNS, FRAME_TOKENS = 1, 20, 4
SIZES: tuple[Override, ...] = (("environment.task.turns", str(MOST_TURNS)), ("rollout.kv_tokens", "100"))
# Under the penalty the last quarter of the turns that the limit holds costs twice what a turn earns.
FREE_SHARE, PENALTY_SHARE = 0.75, 2.0
WINDOW = 5
# The paper's claim: no truncated episodes at first, many later, and a policy that is worth less for it.
FINAL_VS_FREE, FINAL_VS_PEAK = 0.8, 0.7
GOALS = {
    "collapse_max": 1.0,
    "truncated_first_max": 0.02,
    "truncated_later": 0.20,
    "earl_out_of_memory_max": 0,
    "earl_truncated_max": 0,
    "earl_switches": 2,
    "not_complete_max": 0,
}
COMPARES = (
    "Whole runs of examples/growing_context.toml with half of its memory and half of its turns, of which "
    "each task draws a number. All arms have the same engines with the same memory for KV "
    "(rollout.kv_tokens). limit: the layout stays as it begins, and contexts end at the longest that it "
    "holds (limit_tokens, computed by the product); what is truncated earns nothing in success and is "
    "masked in training (scheduler.truncated). penalty: the same; each turn in the last quarter of "
    "the limit costs twice what a turn earns in the mean. earl: no limit, the selector on. score: the share "
    "of 256 held-out tasks that are played to their end without a mistake, under the arm's own rules: "
    "a truncated episode is lost. peak: of the same in training, a mean of 5 steps. "
    "truncated: the share of a step's episodes that were truncated; truncated_first_max over the first 5 "
    "steps of the limit arm, truncated_later the largest mean of 5 later steps in a row, of the seed that "
    "has least. collapse: the limit arm's score over 0.8 of EARL's, or over 0.7 of its own peak, whichever "
    "is less, of the worst seed; at most 1 shows the claim. A policy that never errs loses the tasks that "
    "do not fit: ceiling is the score that it has under an arm's limit, so part of the collapse is "
    "arithmetic. of_ceiling, score over ceiling, is what the arm learned: where the limit arm's is as high "
    "as EARL's, the limit cost tasks and no learning. The penalty was not tuned. not_complete: runs that "
    "did not end as they should; they count as a score of 0, and show no collapse. same_seconds: "
    "success in training, a mean of 5 steps, when the shortest of a seed's three runs had ended. Arms take "
    "turns, another one first for each seed."
)


def figure(settings: PaperSettings) -> PaperFigure:
    chosen = {"seeds": list(SEEDS), "steps": STEPS, "episodes": EPISODES, "lr": LR, "most_turns": MOST_TURNS}
    if (saved := settings.runs_of) is not None:
        return PaperFigure("fig1", chosen | {"runs_of": saved.name}, lambda: summed_anew(saved), GOALS)
    return PaperFigure("fig1", chosen, measure, GOALS)


def measure() -> dict[str, Any]:
    """Trains all arms; about three minutes each on two cores."""
    limit = limit_tokens()
    with tempfile.TemporaryDirectory() as directory:

        def run(seed: int, arm: str) -> dict[str, Any]:
            began_s = time.monotonic()
            overrides = [*overrides_of(arm, limit, seed), ("runs_dir", directory)]
            record = one_run(EXAMPLE, overrides, f"{arm}-seed{seed}")
            return {"seed": seed, "arm": arm, "wall_s": time.monotonic() - began_s, **figures_of(record)}

        runs = [run(seed, arm) for seed, arm in counted("runs of fig1", list(turns(SEEDS)))]
    return {"compares": COMPARES, "limit_tokens": limit, **summary(runs, limit), "runs": runs}


def summed_anew(path: Path) -> dict[str, Any]:
    """The figure of the runs that a result has saved. A run is complete if it has its final evaluation, as in
    `earl compare`. Raises ConfigError for a file that is no result of this figure."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        limit, runs = saved["limit_tokens"], saved["runs"]
        runs = [run | {"complete": run["score_low"] is not None} for run in runs]
        return {"compares": COMPARES, "limit_tokens": limit, **summary(runs, limit), "runs": runs}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no result of fig1: {error}", "name a paper-fig1-….json") from None


def turns(seeds: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Every seed's arms, another one first each time."""
    for number, seed in enumerate(seeds):
        first = number % len(ARMS)
        yield from ((seed, arm) for arm in (*ARMS[first:], *ARMS[:first]))


def limit_tokens() -> int:
    """The longest context that the layout holds with which the run file begins."""
    config = load_run(EXAMPLE, SIZES)
    with tempfile.TemporaryDirectory() as directory:
        create_model(Path(directory) / "model", config.model, config.seed, config.context_tokens)
        holds = LegalLayouts(config, Path(directory)).holds("rollout")
        held = holds(Parallelism(config.rollout.engines, config.rollout.tp))
    assert held is not None, "the run file gives rollout.kv_tokens"
    return int(held)


def overrides_of(arm: str, limit: int, seed: int) -> list[Override]:
    """The keys of an arm, over those of the run file."""
    most_turns, turn_tokens = task_numbers()
    keys: dict[str, object] = {
        "seed": seed,
        "environment.task.least_turns": LEAST_TURNS,
        "scheduler.steps": STEPS,
        "trainer.lr": LR,
        "evaluation.episodes": EPISODES,
        "scheduler.selector": "on" if arm == FREE else "static",
    }
    bound = 0 if arm == FREE else limit
    keys |= {"rollout.max_context_tokens": bound, "model.scratch.max_positions": 0}
    if arm != FREE:
        keys["scheduler.truncated"] = "mask"
    if arm == PENALTY:
        held, earned = limit // turn_tokens, 2 / (LEAST_TURNS + most_turns)
        keys |= {
            "environment.name": "relay/penalised",
            "environment.task.free_turns": int(FREE_SHARE * held),
            "environment.task.penalty": round(PENALTY_SHARE * earned, 3),
        }
    return [*SIZES, *((key, str(value)) for key, value in keys.items())]


def figures_of(run: RecordedRun) -> dict[str, Any]:
    """The curves of a run, by training step, and how it ended."""
    whole = run_figures(run)
    steps = [record for record in run.metrics if record.get("phase") == TRAIN]
    curves = {
        name: [round(float(step[key]), 4) for step in steps]
        for name, key in (
            ("time_s", "time_s"),
            ("length_mean", "length_mean"),
            ("turns_mean", "turns_mean"),
            ("reward_mean", "reward_mean"),
            ("success", "win_rate"),
        )
    }
    curves["truncated"] = [round(step["truncated_episodes"] / step["sequences"], 4) for step in steps]
    return {
        "complete": whole["outcome"] == "complete",
        # What did not end as it should is worth nothing.
        "score": run.result.get("win_rate") or 0.0,
        "score_low": run.result.get("win_low"),
        "score_high": run.result.get("win_high"),
        "out_of_memory": int(whole["episodes_out_of_memory"] or 0),
        "truncated_episodes": int(whole["episodes_truncated"] or 0),
        "switches": int(whole["switches"] or 0),
        "curves": curves,
    }


def summary(runs: Sequence[Mapping[str, Any]], limit: int) -> dict[str, Any]:
    """The figures that have goals, and by arm what is beside them; of every seed, none left out."""
    by = {(run["seed"], run["arm"]): run for run in runs}
    seeds = sorted({run["seed"] for run in runs})
    seconds = {
        seed: min(max(run["curves"]["time_s"], default=0.0) for run in runs if run["seed"] == seed)
        for seed in seeds
    }
    rows = [
        {
            "seed": seed,
            **{f"score_{arm}": by[seed, arm]["score"] for arm in ARMS},
            **{f"of_ceiling_{arm}": of_ceiling(by[seed, arm], limit) for arm in ARMS},
            **{f"peak_{arm}": peak(by[seed, arm]) for arm in ARMS},
            **{f"same_seconds_{arm}": success_at(by[seed, arm], seconds[seed]) for arm in ARMS},
            "collapse": collapse(by[seed, LIMIT], by[seed, FREE]),
        }
        for seed in seeds
    ]

    def worst(choose: Callable[..., float], arm: str, figure: Callable[[Any], float]) -> float:
        return choose(figure(by[seed, arm]) for seed in seeds)

    return {
        "collapse_max": max(row["collapse"] for row in rows),
        "truncated_first_max": worst(
            max, LIMIT, lambda run: max(run["curves"]["truncated"][:WINDOW], default=0.0)
        ),
        "truncated_later": worst(
            min, LIMIT, lambda run: max(smoothed(run["curves"]["truncated"][WINDOW:]), default=0.0)
        ),
        "earl_out_of_memory_max": worst(max, FREE, lambda run: run["out_of_memory"]),
        "earl_truncated_max": worst(max, FREE, lambda run: run["truncated_episodes"]),
        "earl_switches": worst(min, FREE, lambda run: run["switches"]),
        "not_complete_max": sum(not run["complete"] for run in runs),
        "ceiling_limit": ceiling(LIMIT, limit),
        "seeds": rows,
    }


def task_numbers() -> tuple[int, int]:
    """(most turns of a task, tokens of a turn)"""
    task = load_run(EXAMPLE, SIZES).mixture[0].section.task
    return task["turns"], task["digits"] + FRAME_TOKENS


def ceiling(arm: str, limit: int) -> float:
    """The score of a policy that never errs: the share of tasks that fit the arm's limit."""
    turns, turn_tokens = task_numbers()
    if arm == FREE:
        return 1.0
    return round((min(turns, limit // turn_tokens) - LEAST_TURNS + 1) / (turns - LEAST_TURNS + 1), 4)


def of_ceiling(run: Mapping[str, Any], limit: int) -> float:
    return round(run["score"] / ceiling(run["arm"], limit), 4)


def smoothed(values: Sequence[float]) -> list[float]:
    """Means of WINDOW values in a row; of all if there are fewer, none of none."""
    if not values:
        return []
    ends = range(min(WINDOW, len(values)), len(values) + 1)
    return [round(statistics.mean(values[max(0, end - WINDOW) : end]), 4) for end in ends]


def peak(run: Mapping[str, Any]) -> float:
    return max(smoothed(run["curves"]["success"]), default=0.0)


def success_at(run: Mapping[str, Any], seconds: float) -> float:
    """Success in training up to then, the mean of the last WINDOW steps."""
    done = [
        value
        for value, time_s in zip(run["curves"]["success"], run["curves"]["time_s"], strict=True)
        if time_s <= seconds
    ]
    return smoothed(done)[-1] if done else 0.0


def collapse(limited: Mapping[str, Any], free: Mapping[str, Any]) -> float:
    """The limited arm's score over what the claim allows it; at most 1 shows the claim.

    A run that did not end as it should shows nothing: it is as far from the claim as can be.
    """
    if not (limited["complete"] and free["complete"]):
        return 1e9
    against_free = limited["score"] / (FINAL_VS_FREE * free["score"]) if free["score"] else 1e9
    its_peak = peak(limited)
    against_peak = limited["score"] / (FINAL_VS_PEAK * its_peak) if its_peak else 1e9
    return round(min(against_free, against_peak), 3)
