"""Measures what is kept of tic-tac-toe when Connect Four is added, with the retention gate and without it.

legal play of both games ─► tic-tac-toe alone ─► both games, tic-tac-toe protected   with
          │                         └──────────► Connect Four alone                  without
          └────────────────────────────────────► Connect Four alone                  specialist
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.goals import missed_goals
from benchmarks.judged_points import judged_points, mean
from benchmarks.learning import figure_over_seeds, published, to_end
from benchmarks.options import RESULTS, AsJson, Results, Seeds, whole_numbers
from benchmarks.record.checkout import ROOT
from benchmarks.record.overridable import RecordedOverridableCommand
from benchmarks.record.progress import counted, phase
from earl.cli.run.launch import overrides_of
from earl.config.check import cross_check
from earl.config.load import load_run, validate
from earl.config.mixture import MixtureEntry
from earl.config.run import RunConfig
from earl.obs.metrics import read_lines
from earl.stack.rundir import free_name
from services.scheduler.ledger.intervals import Interval
from services.scheduler.ledger.retention import ratio_interval

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = (
    "services",
    "earl/dispatch",
    "earl/models",
    "earl/env",
    "earl/stack",
    "examples/retain.toml",
    "benchmarks/judged_points.py",
    "benchmarks/retain.py",
)
RUN_FILE = ROOT / "examples" / "retain.toml"
# In every seed, seconds at most and the others at least. old_kept_low is the lower end of the interval.
GOALS = {"new_vs_specialist": 0.9, "old_kept_low": 0.97, "seconds_max": 1200.0}

COMPARES = (
    "Connect Four is added to a policy that has learned tic-tac-toe, a model from random weights that first "
    "imitates legal play of both games. with: the run file, whose mixture has tic-tac-toe as a protected "
    "environment; the version that it exports. without: Connect Four alone from the same policy, as many of "
    "its groups a step and as many steps, no gate; its newest version. specialist: the same as without, from "
    "legal play, before any tic-tac-toe; its newest version. All three and the tic-tac-toe policy then play "
    "the same games against the same dice, which no run has trained on or was chosen by. A score is the mean "
    "of a game's points: 1 for a win, 1/2 for a draw. new_vs_specialist: with's score in Connect Four over "
    "the specialist's. old_kept: with's score in tic-tac-toe over that of the tic-tac-toe policy, "
    "old_kept_without the same of without; their intervals, and that of new_vs_specialist, are of paired "
    "games, 95 %. Over seeds, the figures are those of the worst seed, and of old_kept_without the mean. "
    "seconds: of all runs of a seed, the games that judge them included."
)


@dataclass(frozen=True, slots=True)
class Games:
    """The run file's two games: labels in its mixture."""

    old: MixtureEntry
    new: MixtureEntry

    @classmethod
    def of(cls, config: RunConfig) -> Games:
        """Raises BadParameter unless one of two environments is protected."""
        entries = config.mixture
        old = [entry for entry in entries if entry.section.protected]
        if len(entries) != 2 or len(old) != 1:
            raise typer.BadParameter(f"{RUN_FILE.name} has to protect one of two environments")
        return cls(old[0], next(entry for entry in entries if entry is not old[0]))


@app.command(
    cls=RecordedOverridableCommand,
    epilog="Any key of examples/retain.toml: --section.key VALUE, e.g. --scheduler.steps 20",
)
def retain(
    ctx: typer.Context,
    seeds: Seeds = "0,1,2",
    old_steps: Annotated[int, typer.Option(min=1, help="Steps in which tic-tac-toe is learned.")] = 120,
    games: Annotated[int, typer.Option(min=2, help="Games of each kind that judge a policy.")] = 1024,
    runs_dir: Annotated[str, typer.Option(help="Directory of runs instead of the run file's.")] = "",
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Measure what is kept of tic-tac-toe when Connect Four is added, with the retention gate and without.

    Each seed is five whole runs in new processes, one after the other, and four evaluations.
    """
    given = overrides_of(ctx, runs_dir=runs_dir)
    config = load_run(RUN_FILE, given)
    Games.of(config)
    settings = config.model_dump(mode="json", exclude={"seed", "name", "runs_dir"}, exclude_defaults=True)
    about = {"compares": COMPARES, "goals": GOALS, "settings": settings,
             "old_steps": old_steps, "games": games}  # fmt: skip
    runs: list[dict[str, Any]] = []
    with published("retain", about, runs, summary, results, as_json=as_json):
        for seed in counted("seeds", whole_numbers(seeds)):
            runs.append(measured(load_run(RUN_FILE, [*given, ("seed", str(seed))]), old_steps, games))


def measured(config: RunConfig, old_steps: int, games: int) -> dict[str, Any]:
    """The figures of one seed. Ends the command if a run is stopped."""
    began = time.monotonic()
    names = Games.of(config)
    rules = run_of(config, "legal", steps=0)
    tictactoe = run_of(config, "old", rules, entries=[names.old], steps=old_steps)
    arms = {
        "with": run_of(config, "with", tictactoe, protects=True),
        "without": run_of(config, "without", tictactoe, entries=[names.new]),
        "specialist": run_of(config, "specialist", rules, entries=[names.new]),
    }
    policies = {"old": tictactoe, **arms}
    points = {name: points_of(config, directory, name, games) for name, directory in policies.items()}
    return {
        "seed": config.seed,
        **compared(points, names),
        "new_episodes": {name: trained_on(directory, names.new.label) for name, directory in arms.items()},
        "exported_version": exported_version(arms["with"]),
        "newest_version": newest_version(arms["with"]),
        "seconds": round(time.monotonic() - began, 1),
    }


def compared(points: Mapping[str, Mapping[str, Sequence[float]]], names: Games) -> dict[str, Any]:
    """The figures of a seed. points: by policy and environment, of each game, NaN where it failed."""
    old, new = names.old.label, names.new.label
    kept = {name: paired(points[name][old], points["old"][old]) for name in ("with", "without")}
    specialist = paired(points["with"][new], points["specialist"][new])
    return {
        "scores": {
            name: {label: mean(values) for label, values in of_policy.items()}
            for name, of_policy in points.items()
        },
        **bounded("new_vs_specialist", specialist),
        **bounded("old_kept", kept["with"]),
        **bounded("old_kept_without", kept["without"]),
    }


def run_of(
    config: RunConfig, name: str, start: Path | None = None, *, entries: Sequence[MixtureEntry] = (),
    steps: int | None = None, protects: bool = False,
) -> Path:  # fmt: skip
    """Makes a whole run and returns its directory.

    start: the run whose exported model it begins with; None: random weights, and the warm-up. entries: the
    environments that it has, with as many groups each as in the run file; none given: all. protects: with the
    run file's gate and KL, and its evaluations; otherwise nothing is evaluated.
    """
    phase(f"seed {config.seed}, {name}")
    table = config.model_dump(mode="json")
    chosen = entries or config.mixture
    table["environments"] = [entry.section.model_dump(mode="json") for entry in chosen]
    groups = config.scheduler.batch_groups * sum(entry.share for entry in chosen)
    table["scheduler"]["batch_groups"] = max(1, round(groups))
    if steps is not None:
        table["scheduler"]["steps"] = steps
    if start is not None:
        table["model"]["path"] = str((start / "model-final").resolve())
        table["warmup"]["batches"] = 0
    if not protects:
        for section in table["environments"]:
            section["protected"] = False
        table["trainer"]["protected_kl"] = 0.0
        table["evaluation"]["episodes"] = 0
    table["name"] = free_name(config, f"{config.name}-seed{config.seed}-{name}")
    changed = validate(table, RUN_FILE.name)
    cross_check(changed)
    to_end(changed)
    return Path(changed.runs_dir) / changed.name


def points_of(config: RunConfig, directory: Path, name: str, games: int) -> dict[str, list[float]]:
    """Points of the exported model of a run in each game of both environments, by label; NaN where it failed.

    The games are the same for every policy of a seed.
    """
    phase(f"seed {config.seed}, judging {name}")
    labels = [entry.label for entry in config.mixture]
    played = judged_points(config, directory / "model-final", f"{directory.name}-judged", games * len(labels))
    return points_by_label(played, labels)


def points_by_label(points: list[float], labels: Sequence[str]) -> dict[str, list[float]]:
    """Points by label: game i is of the environment i % n."""
    return {label: points[place :: len(labels)] for place, label in enumerate(labels)}


def paired(values: Sequence[float], bases: Sequence[float]) -> Interval:
    """The ratio of two policies' scores over the games that neither failed, with its 95 % interval."""
    both = [pair for pair in zip(values, bases, strict=True) if not any(map(math.isnan, pair))]
    return ratio_interval([value for value, _ in both], [base for _, base in both])


def bounded(name: str, interval: Interval) -> dict[str, float | None]:
    values = {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return {key: None if math.isnan(value) else value for key, value in values.items()}


def trained_on(directory: Path, label: str) -> int:
    """Episodes of an environment that a run has learned from; a step's last line is the one that counts."""
    lines = read_lines(directory / "metrics.jsonl")
    steps = {line["step"]: line for line in lines if line["phase"] == "train"}
    return round(sum(line.get(f"environments.{label}.sequences", 0.0) for line in steps.values()))


def exported_version(directory: Path) -> int:
    """The version that `earl export` takes without being told another."""
    path = (directory / "checkpoints" / "best").resolve()
    return int(path.name.removeprefix("step-")) if path.name.startswith("step-") else 1


def newest_version(directory: Path) -> int:
    return max(line["version"] for line in read_lines(directory / "metrics.jsonl"))


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst seed decides; null where a seed has no figure. missed: names of goals that are not met."""
    figures = {
        "seeds": len(runs),
        "new_vs_specialist": figure_over_seeds(runs, "new_vs_specialist", min),
        "old_kept": figure_over_seeds(runs, "old_kept", min),
        "old_kept_low": figure_over_seeds(runs, "old_kept_low", min),
        "old_kept_without": figure_over_seeds(
            runs, "old_kept_without", lambda values: math.fsum(values) / len(values)
        ),
        "seconds_max": figure_over_seeds(runs, "seconds", max),
    }
    return {**figures, "missed": missed_goals(figures, GOALS)}
