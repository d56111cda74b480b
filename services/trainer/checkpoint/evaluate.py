"""Play a checkpoint on tasks that training never used, and report its score with an interval."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from earl.cli import STARTED_AT
from earl.cli.lib.export_progress import export_progress
from earl.cli.lib.find_run import AsJson, RunDir, pick_run
from earl.cli.lib.notices import waiting
from earl.cli.run.launch import OverridableCommand, finish, overrides_of, run_to_end
from earl.config.check import cross_check
from earl.config.load import load_run, set_override, validate
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack.rundir import free_name
from services.trainer.checkpoint.export import write

app = typer.Typer(add_completion=False)


@app.command("eval", cls=OverridableCommand, epilog="Example: earl eval tictactoe --best --episodes 2000")
def evaluate(
    ctx: typer.Context,
    run: RunDir = None,
    model: Annotated[
        Path | None, typer.Option(help="A model's directory, such as earl export writes, instead of a run's.")
    ] = None,
    run_file: Annotated[
        Path | None,
        typer.Option(metavar="RUN.toml", help="With --model: the run file that names its environment."),
    ] = None,
    version: Annotated[int, typer.Option(min=0, help="Evaluate this policy version; 0: the newest.")] = 0,
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
    """
    if model is not None and (run is not None or version or best):
        raise ConfigError("--model is one model, a run has several", "give a run, or --model and --run-file")
    if (model is None) != (run_file is None):
        raise ConfigError("--model and --run-file belong together", "give both, or the name of a run")
    if version and best:
        raise ConfigError("--version and --best are two ways to choose the version", "give one of them")
    with tempfile.TemporaryDirectory(prefix="earl-eval-") as directory:
        if model is None:
            source = pick_run(run, ended=True)
            config = RunConfig.model_validate_json((source / "run.json").read_bytes())
            model = Path(directory) / "model"
            with waiting("writing the checkpoint as a model, MB", progress=export_progress(model, source)):
                exported = write(source, model, "best" if best else version or "latest")
            number = exported.checkpoint.name.removeprefix("step-")
            which = f"version {number}" if number.isdecimal() else "the model that began"
            playing = f"{which} of {source}"
        else:
            assert run_file is not None
            config, playing = load_run(run_file), str(model)
        config = evaluation_of(config, model, episodes, overrides_of(ctx))
        sys.stderr.write(f"earl: playing {playing}\n")
        outcome = run_to_end(config, resume=False, plain=plain, started_at=STARTED_AT)
    raise typer.Exit(finish(outcome, config, as_json=as_json))


def evaluation_of(
    config: RunConfig, model: Path, episodes: int, overrides: list[tuple[str, str]]
) -> RunConfig:
    """The run that evaluates a model in the environment of another run, and trains nothing."""
    table: dict[str, Any] = config.model_dump(mode="json")
    table["name"] = free_name(config, f"{config.name}-eval")
    table["model"]["path"] = str(model.resolve())
    table["warmup"]["batches"] = 0
    table["scheduler"] |= {"steps": 0, "train_limit_s": 0, "selector": "static", "profile": ""}
    table["evaluation"] |= {"episodes": episodes, "at_start": False, "at_end": True, "every_steps": 0}
    table["trainer"] |= {"checkpoint_every": 0, "kl_coefficient": 0.0, "lora_rank": 0}
    for key, text in overrides:
        set_override(table, key, text)
    changed = validate(table, "earl eval", frozenset(key for key, _ in overrides))
    cross_check(changed)
    return changed
