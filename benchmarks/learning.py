"""The learning of a run file, over seeds: the gain on held-out tasks with its interval, and seconds."""

from __future__ import annotations

import asyncio
import inspect
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import environment_gains
from benchmarks.options import RESULTS, AsJson, Results, Seeds, whole_numbers
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted, phase, view_drawn
from benchmarks.record.results import publish
from earl.cli.lib.figures import bounds, figures
from earl.cli.lib.mixture_figures import by_environment
from earl.cli.run.launch import INTERRUPTED, overrides_of, resume_hint, run_to_end
from earl.config.auto_dtype import auto_keys
from earl.config.load import Override, load_run
from earl.config.mixture import entry_of
from earl.config.run import RunConfig
from earl.env import codec
from earl.env.base import Environment, Factory
from earl.env.serve import load
from earl.env.threads import in_thread
from earl.errors import ConfigError, EarlError
from earl.obs.metrics import read_lines
from earl.stack.auto_dtype import settle
from earl.stack.launcher import LaunchOutcome
from earl.stack.rundir import free_name
from services.scheduler.state.seeds import env_seed

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/dispatch",
    "earl/models",
    "earl/env",
    "earl/stack",
    "examples/mixture.toml",
    "examples/smollm2_arithmetic.toml",
    "examples/smollm2_tool.toml",
)

COMPARES = (
    "The policy after reinforcement learning with the one before it (after the warm-up, if the run file has "
    "one), on the same held-out tasks with the same seeds: gain is the mean difference in reward, gain_low "
    "and gain_high its paired 95 % interval. Each seed is a whole run in new processes, one after the other; "
    "seconds count from the command's start to the end of the final evaluation, first_step_s to the end of "
    "the first training step. Where the run file begins "
    "with imitation (warmup), start_win_rate and start_mean_reward are what that imitation alone has taught, "
    "and imitation_alone has another run of each seed, which imitates for as many episodes as the first one "
    "imitated and learned from in all, and is evaluated on the same tasks before any reinforcement learning. "
    "distinct_tasks: texts among the tasks of the evaluation; reordered_in_training: those of these tasks "
    "whose words and numbers training had too, in another order. " + environment_gains.COMPARES
)


@app.command(
    cls=RecordedOverridableCommand,
    epilog="Any key of the run file: --section.key VALUE, e.g. --trainer.lr 1e-4",
)
def learning(
    ctx: typer.Context,
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="Run file; examples/ has some.")],
    seeds: Seeds = "0,1,2",
    imitation: Annotated[
        bool,
        typer.Option(help="Where the file begins with imitation, also run each seed with imitation alone."),
    ] = True,
    runs_dir: Annotated[str, typer.Option(help="Directory of runs instead of the run file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure what a run file learns over seeds: gain on held-out tasks with its interval, and seconds."""

    given = overrides_of(ctx, runs_dir=runs_dir)

    def config_of(seed: int, overrides: Sequence[Override] = (), suffix: str = "") -> RunConfig:
        config = settle(load_run(run_file, [*given, ("seed", str(seed)), *overrides]))
        return config.model_copy(update={"name": free_name(config, f"{config.name}-seed{seed}{suffix}")})

    configs = [config_of(seed) for seed in whole_numbers(seeds)]
    evaluation = configs[0].evaluation
    if not (evaluation.at_start and evaluation.at_end and evaluation.episodes):
        raise typer.BadParameter(f"{run_file} does not evaluate at start and at end: there would be no gain")
    settings = configs[0].model_dump(mode="json", exclude={"seed", "name", "runs_dir"}, exclude_defaults=True)
    dtypes = {"rollout": configs[0].rollout_dtype, "trainer": configs[0].trainer_dtype}
    alone: list[dict[str, Any]] = []
    about = {
        "compares": COMPARES,
        "run_file": run_file.name,
        "dtypes": dtypes,
        "settings": settings,
        "imitation_alone": alone,
    }
    runs: list[dict[str, Any]] = []
    name = result_name(run_file.stem, load_run(run_file, given), configs[0])
    with published(name, about, runs, summary, results, as_json=as_json):
        over_seeds(whole_numbers(seeds), config_of, runs, tasks_by_seed(configs))
        if imitation and configs[0].warmup.batches:
            for run in counted("seeds with imitation alone", runs):
                overrides = imitating(run["trained"], configs[0].warmup.batch_episodes)
                alone.append(imitated(config_of(run["seed"], overrides, "-imitation"), run["trained"]))


def result_name(stem: str, requested: RunConfig, resolved: RunConfig) -> str:
    """The name of a result: "-float32" is added where the run file's "auto" became that, a slower run."""
    in_float32 = auto_keys(requested) and "bfloat16" not in (resolved.rollout_dtype, resolved.trainer_dtype)
    return f"learning-{stem}-float32" if in_float32 else f"learning-{stem}"


def imitating(episodes: int, batch_episodes: int) -> list[Override]:
    """The overrides of a run that imitates for at least so many episodes and is evaluated after them.

    The one step of reinforcement learning that a run must have comes after that evaluation and is not judged.
    """
    batches = -(-episodes // batch_episodes)
    return [("warmup.batches", str(batches)), ("scheduler.steps", "1"), ("evaluation.at_end", "false")]


def imitated(config: RunConfig, episodes: int) -> dict[str, Any]:
    """The figures of a run after imitation alone; intervals are 95 %. Ends the command if it is stopped.

    episodes: that the run with reinforcement learning has imitated and learned from in all.
    """
    outcome = to_end(config)
    start = outcome.status.evaluation("start")
    done = start is not None and start.done
    return {
        "seed": config.seed,
        "episodes_of_the_other_run": episodes,
        "episodes": config.warmup.batches * config.warmup.batch_episodes,
        "win_rate": start.win_rate if start and done else None,
        **bounds("win", start.win_bounds if start else None),
        "mean_reward": start.mean_reward if start and done else None,
        **bounds("reward", start.reward_bounds if start else None),
        "seconds": round(outcome.seconds, 1),
        **({"environments": environments} if (environments := started(outcome)) else {}),
    }


def started(outcome: LaunchOutcome) -> dict[str, dict[str, float]]:
    """The figures of each environment of a mixture before reinforcement learning; {} if there are none."""
    start = outcome.status.evaluation("start")
    return by_environment(start.metrics) if start is not None and start.done else {}


@contextmanager
def published(
    name: str,
    about: dict[str, Any],
    runs: list[dict[str, Any]],
    summary: Callable[[list[dict[str, Any]]], dict[str, Any]],
    results: Path,
    *,
    as_json: bool,
) -> Iterator[None]:
    """Publishes what is in `runs` at the end of the block, even if it ends early: a seed's run is long."""
    try:
        yield
    finally:
        if runs:
            publish(name, {**about, "runs": runs, **summary(runs)}, results, as_json=as_json)


def over_seeds(
    seeds: list[int],
    config_of: Callable[[int], RunConfig],
    runs: list[dict[str, Any]],
    tasks: Mapping[int, TaskTexts] | None = None,
) -> None:
    """Appends the figures of a whole run for each seed; ends the command if a run is stopped.

    tasks: texts of the tasks by seed; a seed without any has no counts of them.
    """
    tasks = tasks or {}
    for seed in counted("seeds", seeds):
        config = config_of(seed)
        outcome = to_end(config)
        directory = Path(config.runs_dir) / config.name
        runs.append({**figures(outcome, seed), **first_step(directory, outcome.seconds)})
        if environments := runs[-1].get("environments"):
            runs[-1]["environments"] = environment_gains.with_start(environments, started(outcome))
        if seed in tasks:
            runs[-1] |= task_counts(tasks[seed], config, runs[-1]["trained"])


@dataclass(frozen=True, slots=True)
class TaskTexts:
    """The first texts of a run's tasks, in order: of the evaluation, the warm-up and training's groups."""

    evaluate: Sequence[str]
    warmup: Sequence[str]
    train: Sequence[str]


def tasks_by_seed(configs: Sequence[RunConfig]) -> dict[int, TaskTexts]:
    """The texts of the tasks that runs may have, by seed, made here before the first of them trains.

    Empty if the runs start no environment themselves, or have several, or a task set. Empty too, with a line
    on stderr, if it cannot be made or started here: that would end no run, whose hosts and machines may be
    others.
    """
    if any(len(config.mixture) > 1 or not _plays_seeds(config) for config in configs):
        return {}
    phase("listing the tasks of the runs")
    try:
        return {config.seed: asyncio.run(_task_texts(config)) for config in configs}
    except EarlError as error:
        sys.stderr.write(f"earl: distinct_tasks and reordered_in_training are left out: {error}\n")
        return {}


def _plays_seeds(config: RunConfig) -> bool:
    """Returns whether the run starts the hosts of its environment, which has no task set."""
    section = entry_of(config.mixture, "").section
    return bool(section.serve) and not section.tasks and not section.instances


async def _task_texts(config: RunConfig) -> TaskTexts:
    section, scheduler, warmup = entry_of(config.mixture, "").section, config.scheduler, config.warmup
    served = load(section.serve)
    if section.name not in served:
        raise ConfigError(f"{section.serve!r} serves no {section.name!r}", f"name one of {', '.join(served)}")

    async def texts(purpose: str, count: int) -> list[str]:
        seeds = (env_seed(config.seed, purpose, index) for index in range(count))
        return [await first_text(served[section.name], seed, section.task) for seed in seeds]

    return TaskTexts(
        evaluate=await texts("evaluate", config.evaluation.episodes),
        warmup=await texts("warmup", warmup.batches * warmup.batch_episodes),
        train=await texts("train", scheduler.steps * scheduler.batch_groups),
    )


async def first_text(factory: Factory, seed: int, task: Mapping[str, Any]) -> str:
    """The text with which an episode begins. The environment is closed, also after a failure.

    Raises EnvProtocolError if `reset` returns no observation.
    """
    environment = factory()
    try:
        observation = await _called(environment, environment.reset, seed, dict(task))
        return codec.answer(0, 0, observation).result.observation.text
    finally:
        await _called(environment, environment.close)


async def _called(environment: Environment, method: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a method returns, plain or async; a plain one may wait, in a thread, as on a host."""
    if inspect.iscoroutinefunction(method) or not environment.blocking:
        outcome = method(*arguments)
    else:
        outcome = await in_thread(method, *arguments)
    return await outcome if inspect.isawaitable(outcome) else outcome


def task_counts(texts: TaskTexts, config: RunConfig, trained: int) -> dict[str, int]:
    """Counts how often tasks of the evaluation repeat each other and those of training, by their first text.

    distinct_tasks: texts that differ from each other. reordered_in_training: tasks of the evaluation whose
    words and numbers training had too, in another order. trained: episodes that were trained on, the warm-up
    included; instances that took the place of others are left out.
    """
    imitated_on = min(trained, len(texts.warmup))
    groups = -(-(trained - imitated_on) // entry_of(config.mixture, "").group_size)
    trained_on = {*texts.warmup[:imitated_on], *texts.train[:groups]}
    orders = {words(text) for text in trained_on}
    reordered = [text for text in texts.evaluate if text not in trained_on and words(text) in orders]
    return {"distinct_tasks": len(set(texts.evaluate)), "reordered_in_training": len(reordered)}


def words(text: str) -> tuple[str, ...]:
    """The words and numbers of a text, sorted."""
    return tuple(sorted(re.findall(r"\w+", text.lower())))


def first_step(directory: Path, seconds: float) -> dict[str, Any]:
    """first_step_s: from the command's start to the end of the first training step; null if there was none.

    seconds: from the command's start to the end of the final evaluation, which the scheduler's clock has too.
    """
    evaluations = [line["time_s"] for line in read_lines(directory / "evaluations.jsonl")]
    steps = (line["time_s"] for line in read_lines(directory / "metrics.jsonl") if line["phase"] == "train")
    first = next(steps, None)
    known = first is not None and evaluations
    return {"first_step_s": round(seconds - evaluations[-1] + first, 1) if known else None}


def to_end(config: RunConfig) -> LaunchOutcome:
    """Makes a whole run in new processes; ends the command if it is stopped."""
    with view_drawn():
        outcome = run_to_end(config, resume=False, plain=False, started_at=time.monotonic())
    if not outcome.complete:
        sys.stderr.write(f"earl: {config.name} was stopped; {resume_hint(outcome)}\n")
        raise typer.Exit(INTERRUPTED)
    return outcome


def figure_over_seeds(
    runs: Sequence[Mapping[str, Any]], name: str, function: Callable[[list[float]], float]
) -> float | None:
    """A figure of several seeds' runs as one number; None if a seed has none."""
    values = [run[name] for run in runs]
    return None if None in values else function(values)


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """seeds_improved: seeds whose whole interval lies above 0. Rewards and seconds as in the runs; null
    where a run has none, all its episodes having failed. Those of a mixture: see environment_summary."""

    return {
        "seeds": len(runs),
        "seeds_improved": sum(run["gain_low"] is not None and run["gain_low"] > 0 for run in runs),
        "gain_median": figure_over_seeds(runs, "gain", statistics.median),
        "gain_min": figure_over_seeds(runs, "gain", min),
        "start_reward_median": figure_over_seeds(runs, "start_mean_reward", statistics.median),
        "reward_median": figure_over_seeds(runs, "mean_reward", statistics.median),
        "seconds_max": figure_over_seeds(runs, "seconds", max),
        **environment_gains.environment_summary(runs),
    }
