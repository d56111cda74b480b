"""Write a run's checkpoint as a directory that transformers, vLLM and SGLang load."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from earl.cli.lib.export_progress import export_progress
from earl.cli.lib.find_run import AsJson, RunDir, pick_run
from earl.cli.lib.notices import nothing_counted, waiting
from earl.cli.lib.policy import DEFAULT, Version
from earl.cli.lib.retention import recorded_retention
from earl.config.run import RunConfig
from earl.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from earl.models.export_record import ExportRecord

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class Export:
    """A finished export. checkpoint: the directory from which the weights came."""

    checkpoint: Path
    record: ExportRecord
    # The model that the run started from has a chat template.
    base_template: bool


@app.command(epilog="Example: earl export tictactoe --best --to exported --json")
def export(
    to: Annotated[Path, typer.Option(help="Directory to write; it must not exist.")],
    run: RunDir = None,
    version: Annotated[int, typer.Option(min=0, help=f"Export this policy version; 0: {DEFAULT}.")] = 0,
    best: Annotated[
        bool, typer.Option("--best", help="Export the version with the best evaluation.")
    ] = False,
    latest: Annotated[bool, typer.Option("--latest", help="Export the newest version.")] = False,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16; the run's model.dtype if empty.")] = "",
    adapter: Annotated[bool, typer.Option("--adapter", help="Adapters alone, as PEFT reads them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's checkpoint as a directory that transformers, vLLM and SGLang load.

    The chat template has the run's system prompt and action prefix, generation_config.json its stop tokens,
    temperature and longest answer. README.md describes the model. Adapters are merged into the weights.
    """
    if (version > 0) + best + latest > 1:
        raise ConfigError(
            "--version, --best and --latest are three ways to choose the version", "give one of them"
        )
    source = pick_run(run, ended=True)
    # The size of adapters alone is not known beforehand.
    progress = export_progress(to, source, dtype) if not adapter else nothing_counted
    with waiting(f"writing {to}{'' if adapter else ', MB'}", progress=progress):
        which = "best" if best else "latest" if latest else version or "default"
        exported = write(source, to, which, dtype, adapter=adapter)
    from services.trainer.checkpoint.model_card import summary

    lines = summary(exported.record, base_template=exported.base_template)
    written = [f"written: {to}, from {exported.checkpoint}", *(f"  {line}" for line in lines)]
    if which in ("default", "best"):
        written += recorded_retention(source, exported.record.version)
    sys.stderr.write("\n".join(written) + "\n")
    if as_json:
        values = {"directory": str(to), "checkpoint": str(exported.checkpoint)}
        sys.stdout.write(json.dumps(values | json.loads(exported.record.encode())) + "\n")


def write(run: Path, to: Path, which: Version, dtype: str = "", *, adapter: bool = False) -> Export:
    """Exports one version. `to` appears whole or not at all.

    Raises ConfigError (no run, `to` exists, an unknown dtype) and CheckpointError.
    """
    if not (run / "run.json").is_file():
        raise ConfigError(f"{run} is no run's directory: it has no run.json", "give runs/NAME")
    if to.exists() or to.is_symlink():
        raise ConfigError(f"{to} exists already", "choose another --to, or remove it")
    if dtype not in ("", "float32", "bfloat16"):
        raise ConfigError(f"--dtype {dtype} is neither float32 nor bfloat16", "give one of the two")
    config = RunConfig.model_validate_json((run / "run.json").read_bytes())
    path = find(run / "checkpoints", default_version(run, config) if which == "default" else which)

    import torch  # heavy: after what can be wrong was checked

    from earl.models.chat import read_template
    from earl.models.weights import save_checkpoint
    from services.trainer.checkpoint.export_files import record_of, texts_of
    from services.trainer.checkpoint.reader import SavedModel, model_tensors
    from services.trainer.checkpoint.retention import version_of

    model = run / "model"
    record = record_of(run, config, version_of(path) or 1)
    texts = texts_of(model, record)
    dtype = dtype or config.model.weight_dtype
    if path == model.resolve():
        if adapter:
            raise ConfigError(
                f"version 1 of {run} is the model it began with: no adapters", "leave --adapter out"
            )
        saved, tensors = None, model_tensors(model, getattr(torch, dtype))
    else:
        saved = SavedModel(path, model)
        tensors = saved.tensors(getattr(torch, dtype))
    to.parent.mkdir(parents=True, exist_ok=True)
    if adapter:
        _write_adapter(saved, to, texts)
    else:
        save_checkpoint(to, model, tensors, dtype=dtype, texts=texts)
    return Export(path, record, bool(read_template(model)[0]))


def default_version(run: Path, config: RunConfig) -> Literal["best", "latest"]:
    """The version that is taken where none was chosen: the newest; of a run with protected environments the
    best, for that has kept them. Raises CheckpointError if there is no best one."""
    from services.trainer.checkpoint.retention import BEST

    protected = [entry.label for entry in config.mixture if entry.section.protected]
    if not protected:
        return "latest"
    if not (run / "checkpoints" / BEST).exists():
        raise CheckpointError(
            f"no version of {run} has been evaluated, and the run protects {', '.join(protected)}",
            "resume it until one is, or choose a version: --version N",
        )
    return "best"


def find(directory: Path, which: int | Literal["best", "latest"]) -> Path:
    """The checkpoint of a version, the newest or the best. Raises CheckpointError, naming those there are."""
    from services.trainer.checkpoint.retention import BEST, checkpoints

    existing = checkpoints(directory)
    names = ", ".join(path.name for path in existing)
    if which == "latest":
        path = existing[0] if existing else directory / "step-1"
    elif which == "best":
        path = (directory / BEST).resolve()
    else:
        path = directory / f"step-{which}"
    model = (directory.parent / "model").resolve()
    if path == model or (which == 1 and path not in existing and model.is_dir()):
        return model
    if path not in existing and path not in [each.resolve() for each in existing]:
        saves = "a run saves them every trainer.checkpoint_every steps and at its end"
        raise CheckpointError(
            f"{directory} has no checkpoint {which}",
            f"there are: {names}" if names else f"it has none: {saves}",
        )
    return path


def _write_adapter(saved, to: Path, texts: dict[str, str]) -> None:
    from safetensors.torch import save_file

    from earl.models.weights import SIDE_FILES, copy_side_files, written_whole

    if saved.manifest.adapter is None:
        raise ConfigError(
            f"{saved.path} holds no adapters: every parameter was trained", "leave --adapter out"
        )
    lora = saved.manifest.adapter.lora
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(saved.model.resolve()),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": list(lora.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    with written_whole(to) as partial:
        # PEFT reads the model's own config.json where that model is.
        copy_side_files(saved.model, partial, (name for name in SIDE_FILES if name != "config.json"), texts)
        tensors = {name: tensor.contiguous() for name, tensor in saved.adapter_tensors()}
        save_file(tensors, partial / "adapter_model.safetensors", metadata={"format": "pt"})
        (partial / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
