"""Play a checkpoint on tasks that training never used, and report its score with an interval."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from earl.cli import STARTED_AT
from earl.cli.lib.export_progress import export_progress
from earl.cli.lib.find_run import AsJson
from earl.cli.lib.notices import waiting
from earl.cli.lib.policy import DEFAULT, Policy, RunVersion, policy_of
from earl.cli.lib.run_directory import config_of
from earl.cli.run.launch import OverridableCommand, finish, overrides_of, run_to_end
from earl.config.check import cross_check
from earl.config.load import Override, load_run, set_override, validate
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.models.export_record import FILE, read_record
from earl.stack.rundir import free_name
from services.trainer.checkpoint.export import write

app = typer.Typer(add_completion=False)

# Keys that an evaluation of a model needs, and that its earl.json does not have.
NOT_RECORDED = ("environment.serve", "rollout.max_context_tokens")


@app.command("eval", cls=OverridableCommand, epilog="Example: earl eval tictactoe --best --episodes 2000")
def evaluate(
    ctx: typer.Context,
    policy: Policy = None,
    model: Annotated[
        Path | None, typer.Option(help="A model's directory, such as earl export writes, instead of a run's.")
    ] = None,
    run_file: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN.toml", help="The run file of a model's directory, instead of its earl.json."
        ),
    ] = None,
    version: Annotated[int, typer.Option(min=0, help=f"Evaluate this policy version; 0: {DEFAULT}.")] = 0,
    best: Annotated[
        bool, typer.Option("--best", help="Evaluate the version with the best evaluation.")
    ] = False,
    episodes: Annotated[int, typer.Option(min=1, max=16_384, help="Episodes to play.")] = 512,
    as_json: AsJson = False,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of the live view.")] = False,
) -> None:
    """Play a checkpoint on tasks that training never used, and report its score with an interval.

    The tasks are those of the run's own evaluations, as many as --episodes. Any key of the run file may
    change: --section.key VALUE, for example --evaluation.temperature 0. The result is a run of its own.

    An exported model brings environment, prompts and sampling in its earl.json; --environment.serve and
    --rollout.max_context_tokens have to be given, and other keys have their defaults. With --run-file all
    comes from a run file.
    """
    if model is not None and (policy is not None or version or best):
        raise ConfigError("--model is one model, a run has several", "give a run, or --model and --run-file")
    source = model if model is not None else policy_of(policy, version, best=best)
    overrides = overrides_of(ctx)
    with tempfile.TemporaryDirectory(prefix="earl-eval-") as directory:
        if isinstance(source, RunVersion):
            if run_file is not None:
                raise ConfigError(
                    f"--run-file belongs to a model's directory, and {source.run} is a run",
                    "leave it out, or give a model's directory",
                )
            model = Path(directory) / "model"
            config, playing = config_of(source.run), write_model(source, model)
        else:
            model, playing = source, str(source)
            config = load_run(run_file) if run_file is not None else recorded_config(source, overrides)
        config = evaluation_of(config, model, episodes, overrides)
        sys.stderr.write(f"earl: playing {playing}\n")
        outcome = run_to_end(config, resume=False, plain=plain, started_at=STARTED_AT)
    raise typer.Exit(finish(outcome, config, as_json=as_json))


def write_model(source: RunVersion, to: Path) -> str:
    """Writes a run's version as a model; returns what it is, in words. Raises CheckpointError."""
    with waiting("writing the checkpoint as a model, MB", progress=export_progress(to, source.run)):
        exported = write(source.run, to, source.version)
    number = exported.checkpoint.name.removeprefix("step-")
    which = f"version {number}" if number.isdecimal() else "the model that began"
    return f"{which} of {source.run}"


def recorded_config(model: Path, overrides: Sequence[Override]) -> RunConfig:
    """The run that an exported model's earl.json describes; keys that it does not have are defaults.

    Raises ConfigError if there is no earl.json, or if `overrides` lack a key of NOT_RECORDED.
    """
    record = read_record(model)
    if record is None:
        raise ConfigError(
            f"{model} has no {FILE}, which would name its environment",
            "give its run file: --run-file RUN.toml",
        )
    given = dict(overrides)
    missing = [f"--{key}" for key in NOT_RECORDED if key not in given]
    if missing:
        raise ConfigError(
            f"{model / FILE} does not have all that an evaluation in {record.environment} needs",
            f"give {' and '.join(missing)}, or the run file: --run-file RUN.toml",
        )
    table: dict[str, Any] = {
        "name": record.run,
        "model": dict(record.model),
        "rollout": {"max_new_tokens": record.max_new_tokens},
        "evaluation": {"temperature": record.temperature, **record.filters},
    }
    if any(environment.get("tasks") for environment in record.environments):
        raise ConfigError(
            f"{model / FILE} does not have the task set that its run played",
            "give its run file: --run-file RUN.toml",
        )
    several = len(record.environments) > 1
    if several:
        table["environments"] = [dict(environment) for environment in record.environments]
    else:
        table["environment"] = {"name": record.environment, "task": dict(record.task)}
        table["environment"] |= next(map(dict, record.environments), {})
    for key in NOT_RECORDED:
        if several and key == "environment.serve":
            for environment in table["environments"]:
                environment["serve"] = given[key]
        else:
            set_override(table, key, given[key])
    return validate(table, str(model / FILE), frozenset(NOT_RECORDED))


def evaluation_of(
    config: RunConfig, model: Path, episodes: int, overrides: list[tuple[str, str]]
) -> RunConfig:
    """The run that evaluates a model in the environment of another run, and trains nothing."""
    table: dict[str, Any] = config.model_dump(mode="json")
    table["name"] = free_name(config, f"{config.name}-eval")
    table["model"]["path"] = str(model.resolve())
    table["warmup"] |= {"batches": 0, "episodes": "", "least_reward": "any"}
    table["teacher"] = {}
    table["scheduler"] |= {"steps": 0, "train_limit_s": 0, "selector": "static", "profile": ""}
    table["evaluation"] |= {"episodes": episodes, "at_start": False, "at_end": True, "every_steps": 0}
    table["trainer"] |= {"checkpoint_every": 0, "kl_coefficient": 0.0, "protected_kl": 0.0, "lora_rank": 0}
    for key, text in overrides:
        if key == "environment.serve" and config.environments:
            for environment in table["environments"]:
                environment["serve"] = text
        else:
            set_override(table, key, text)
    changed = validate(table, "earl eval", frozenset(key for key, _ in overrides))
    cross_check(changed)
    return changed
