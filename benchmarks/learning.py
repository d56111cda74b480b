"""What a run file learns, over seeds: the gain on held-out tasks with its interval, and seconds."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.output import RESULTS, AsJson, Results, Seeds, publish, whole_numbers
from earl.cli.figures import figures
from earl.cli.run import INTERRUPTED, OverridableCommand, overrides_of, resume_hint, run_to_end
from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.stack.rundir import free_name

app = typer.Typer(add_completion=False)

COMPARES = (
    "The policy after training with the policy before it, on the same held-out tasks with the same seeds: "
    "gain is the mean difference in reward, gain_low and gain_high its paired 95 % interval. Each seed is a "
    "whole run in new processes, one after the other; seconds count from the command's start to the end of "
    "the final evaluation."
)


@app.command(
    cls=OverridableCommand, epilog="Any key of the run file: --section.key VALUE, e.g. --trainer.lr 1e-4"
)
def learning(
    ctx: typer.Context,
    run_file: Annotated[Path, typer.Argument(metavar="RUN.toml", help="Run file; examples/ has some.")],
    seeds: Seeds = "0,1,2",
    runs_dir: Annotated[str, typer.Option(help="Directory of runs, instead of the file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """What a run file learns, over seeds: the gain on held-out tasks with its interval, and seconds."""

    def config_of(seed: int) -> RunConfig:
        config = load_run(run_file, overrides_of(ctx, seed=seed, runs_dir=runs_dir))
        return config.model_copy(update={"name": free_name(config, f"{config.name}-seed{seed}")})

    configs = [config_of(seed) for seed in whole_numbers(seeds)]
    if not configs[0].evaluation.at_start or not configs[0].evaluation.at_end:
        raise typer.BadParameter(f"{run_file} does not evaluate at start and at end: there would be no gain")
    runs = over_seeds(whole_numbers(seeds), config_of)
    settings = configs[0].model_dump(mode="json", exclude={"seed", "name", "runs_dir"}, exclude_defaults=True)
    publish(
        f"learning-{run_file.stem}",
        {
            "compares": COMPARES,
            "run_file": run_file.name,
            "settings": settings,
            "runs": runs,
            **summary(runs),
        },
        results,
        as_json=as_json,
    )


def over_seeds(seeds: list[int], config_of: Callable[[int], RunConfig]) -> list[dict[str, Any]]:
    """The figures of a whole run for each seed; ends the command if one is stopped."""
    runs: list[dict[str, Any]] = []
    for seed in seeds:
        started_at = time.monotonic()
        outcome = run_to_end(config_of(seed), resume=False, plain=False, started_at=started_at)
        if not outcome.complete:
            sys.stderr.write(f"earl: seed {seed} was stopped; {resume_hint(outcome)}\n")
            raise typer.Exit(INTERRUPTED)
        runs.append(figures(outcome, seed))
    return runs


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """seeds_improved: seeds whose whole interval lies above 0. Rewards and seconds as in the runs."""
    return {
        "seeds": len(runs),
        "seeds_improved": sum(run["gain_low"] is not None and run["gain_low"] > 0 for run in runs),
        "gain_median": statistics.median(run["gain"] for run in runs),
        "gain_min": min(run["gain"] for run in runs),
        "start_reward_median": statistics.median(run["start_mean_reward"] for run in runs),
        "reward_median": statistics.median(run["mean_reward"] for run in runs),
        "seconds_max": max(run["seconds"] for run in runs),
    }
