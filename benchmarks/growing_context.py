"""A run whose contexts grow, with parallelism that changes, against every static layout that survives it."""

from __future__ import annotations

import itertools
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import paced_growth
from benchmarks.learning import published
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.checkout import ROOT
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted, phase, view_drawn
from earl.cli.compare.command import plain
from earl.cli.compare.figures import figures
from earl.cli.report.curves import TRAIN, smooth
from earl.cli.report.data import RecordedRun, read_run
from earl.cli.run.launch import INTERRUPTED, overrides_of, resume_hint, run_to_end
from earl.config.load import Override, load_run
from earl.config.run import RunConfig
from earl.errors import EarlError
from earl.models.create import create_model
from earl.parallelism import Parallelism
from earl.stack.rundir import free_name
from services.scheduler.parallelism.legal_layouts import LegalLayouts

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/dispatch",
    "earl/models",
    "earl/env",
    "earl/stack",
    "examples/growing_context.toml",
    "examples/growing_paced.toml",
    "earl/pacing",
)

EXAMPLE = ROOT / "examples" / "growing_context.toml"
PACED_EXAMPLE = ROOT / "examples" / "growing_paced.toml"
COMPARES = (
    "Tokens trained on per second of a whole run, warm-up and switches included, of one run file: with the "
    "selector on, and with each static layout of rollout and trainer. profiled: the selector had a profile "
    "of this machine (earl profile). vs_best_static is the first over the "
    "best of those that survive: that complete, with no episode truncated or lost to memory. Layouts that "
    "cannot hold the longest sequence by rollout.kv_tokens and trainer.microbatch_tokens end as `start`, "
    "the layout that the run file begins with; they are run with --all. Contexts grow with skill, which no "
    "two runs gain alike: vs_best_static_alike compares up to the longest mean context that both have "
    "reached. Runs take turns, their order turned round each time; ratios are of medians."
)
# Steps of the running mean that tells how far contexts had grown.
WINDOW = 5
OURS = "selector"
# The layout that the file begins with, kept.
START = "start"
KEPT = (
    "outcome", "steps", "elapsed_s", "step_s", "tokens_per_s", "reward_last", "mean_tokens_first",
    "mean_tokens_last", "max_tokens", "episodes_truncated", "episodes_out_of_memory", "paced", "over_pace",
    "parallelism_rollout", "parallelism_trainer", "switches", "switches_rolled_back", "stall_s",
)  # fmt: skip


@app.command(
    cls=RecordedOverridableCommand,
    epilog="Any key of the run file: --section.key VALUE, e.g. --scheduler.steps 60",
)
def growing_context(
    ctx: typer.Context,
    run_file: Annotated[
        Path | None, typer.Argument(metavar="RUN.toml", help="Run file; examples/ has one for each form.")
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of each way.")] = 1,
    all_layouts: Annotated[
        bool, typer.Option("--all", help="Also run layouts that cannot hold the longest sequence.")
    ] = False,
    paced: Annotated[
        bool, typer.Option("--paced", help="On simulated devices, in pairs, against every static layout.")
    ] = False,
    runs_dir: Annotated[str, typer.Option(help="Directory of runs instead of the run file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Compare the selector with every static layout that survives a run whose contexts grow."""
    given = overrides_of(ctx, runs_dir=runs_dir)
    phase("finding the layouts that survive")
    run_file = run_file or (PACED_EXAMPLE if paced else EXAMPLE)
    config = load_run(run_file, given)
    ways = {OURS: [("scheduler.selector", "on")], START: [("scheduler.selector", "static")]}
    ways |= dict(static_ways(config, all_layouts=all_layouts or paced))
    if paced:
        paced_growth.compare(
            run_file, config, given, ways, OURS,
            lambda way, keys: one_run(run_file, [*given, *ways[way], *keys], way),
            run_figures, survives, repetitions, results, as_json=as_json,
        )  # fmt: skip
        return
    runs: list[dict[str, Any]] = []
    records: list[RecordedRun] = []

    def summed(_: list[dict[str, Any]]) -> dict[str, Any]:
        return summary(list(ways), runs, records)

    about = {"compares": COMPARES, "run_file": run_file.name}
    with published("growing-context", about, runs, summed, results, as_json=as_json):
        turns = [way for number in range(repetitions) for way in list(ways)[:: 1 if number % 2 == 0 else -1]]
        for way in counted("runs", turns):
            records.append(one_run(run_file, [*given, *ways[way]], way))
            runs.append({"way": way, **run_figures(records[-1])})


def static_ways(config: RunConfig, *, all_layouts: bool) -> Iterator[tuple[str, list[Override]]]:
    """The overrides of each static layout of rollout and trainer except the run file's, by name."""
    rollout, trainer = config.rollout, config.trainer
    with tempfile.TemporaryDirectory() as directory:
        create_model(Path(directory) / "model", config.model, config.seed, config.context_tokens)
        layouts = LegalLayouts(config, Path(directory))
        of_rollout = layouts.legal("rollout", [rollout.engines * rollout.tp])
        of_trainer = layouts.legal("trainer", [trainer.ranks])
        holds = {stage: layouts.holds(stage) for stage in ("rollout", "trainer")}
        longest = layouts.longest
        for layout, trained in itertools.product(of_rollout, of_trainer):
            begun = layout == Parallelism(rollout.engines, rollout.tp) and trained == trainer.parallelism
            bounds = holds["rollout"](layout), holds["trainer"](trained)
            held = all(bound is None or bound >= longest for bound in bounds)
            if begun or not (held or all_layouts):
                continue
            yield (
                f"{layout} / {trained}",
                [
                    ("scheduler.selector", "static"),
                    ("rollout.engines", str(layout.dp)),
                    ("rollout.tp", str(layout.tp)),
                    ("rollout.max_sequences", str(rollout.max_sequences * layout.tp // rollout.tp)),
                    *([("rollout.kv_tokens", str(int(bounds[0] or 0)))] if rollout.kv_tokens else []),
                    ("trainer.tp", str(trained.tp)),
                    ("trainer.cp", str(trained.cp)),
                ],
            )


def one_run(run_file: Path, overrides: Sequence[Override], way: str) -> RecordedRun:
    """The record of a whole run in new processes; ends the command if it is stopped."""
    config = load_run(run_file, list(overrides))
    name = f"{config.name}-{re.sub('[^a-z0-9]+', '-', way)}"
    config = config.model_copy(update={"name": free_name(config, name)})
    sys.stderr.write(f"{way}: {config.runs_dir}/{config.name}\n")
    try:
        with view_drawn():
            outcome = run_to_end(config, resume=False, plain=True, started_at=time.monotonic())
    except EarlError as error:
        # How a layout ends that cannot hold its sequences is what is asked: the record says it.
        sys.stderr.write(f"{way} ended: {error}\n")
        return read_run(Path(config.runs_dir) / config.name)
    if not outcome.complete:
        sys.stderr.write(f"earl: {way} was stopped; {resume_hint(outcome)}\n")
        raise typer.Exit(INTERRUPTED)
    return read_run(outcome.directory)


def run_figures(run: RecordedRun) -> dict[str, Any]:
    """The figures of `earl compare` for a run, and its directory."""
    kept_figures: dict[str, Any] = {"directory": run.directory.name}
    for figure in figures():
        if figure.key in KEPT:
            kept_figures |= plain(figure.key, figure.of(run))
    return kept_figures


def survives(run: dict[str, Any]) -> bool:
    """Returns whether the run completed and no episode was truncated or lost for want of memory."""
    lost = (run["episodes_truncated"] or 0) + (run["episodes_out_of_memory"] or 0)
    return run["outcome"] == "complete" and not lost


def rate_up_to(run: RecordedRun, tokens: float) -> float | None:
    """Tokens trained on per second until the mean context of WINDOW steps first reached `tokens`."""
    means = smooth(run.points("length_mean", phase=TRAIN), WINDOW)
    step = next((step for step, mean in means if mean >= tokens), None)
    if step is None:
        return None
    ends_s = dict(run.points("time_s", phase=TRAIN))
    done = sum(tokens for number, tokens in run.points("tokens", phase=TRAIN) if number <= step)
    return done / ends_s[step]


def longest_mean(run: RecordedRun) -> float:
    """The highest mean context of WINDOW steps, in tokens."""
    return max((mean for _, mean in smooth(run.points("length_mean", phase=TRAIN), WINDOW)), default=0.0)


def summary(
    ways: Sequence[str], runs: Sequence[dict[str, Any]], records: Sequence[RecordedRun]
) -> dict[str, Any]:
    """tokens_per_s and survivors by way (medians), and the selector's over the best static survivor's."""
    of = {way: [index for index, run in enumerate(runs) if run["way"] == way] for way in ways}
    survivors = [way for way in ways if of[way] and all(survives(runs[index]) for index in of[way])]
    rates = {
        way: statistics.median(runs[index]["tokens_per_s"] for index in of[way])
        for way in ways
        if of[way] and all(runs[index]["tokens_per_s"] for index in of[way])
    }
    static = [way for way in survivors if way != OURS]
    best = max(static, key=lambda way: rates[way], default=None)
    # A run that does not survive cannot be compared.
    both = [OURS, best] if best and OURS in survivors else []
    reached = min((longest_mean(records[index]) for way in both for index in of[way]), default=0.0)
    alike = {
        way: statistics.median(rate for index in of[way] if (rate := rate_up_to(records[index], reached)))
        for way in both
    }
    selector_runs = [runs[index] for index in of[OURS]]
    return {
        "vs_best_static": rates[OURS] / rates[best] if best and both else None,
        "vs_best_static_alike": alike[OURS] / alike[best] if best and both else None,
        "alike_up_to_tokens": reached,
        "best_static": best,
        "survivors": survivors,
        "tokens_per_s": rates,
        "tokens_per_s_alike": alike,
        "oom": sum(int(run["episodes_out_of_memory"] or 0) for run in selector_runs),
        "truncated": sum(int(run["episodes_truncated"] or 0) for run in selector_runs),
        "switches": sum(int(run["switches"]) for run in selector_runs),
        # Without a profile the selector decides nothing but what a sequence that fits nowhere forces.
        "profiled": all(records[index].decisions for index in of[OURS]),
    }
