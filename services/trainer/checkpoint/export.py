"""Write a run's checkpoint as a directory that transformers, vLLM and SGLang load."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from earl.cli.lib.find_run import AsJson, NamedRun
from earl.config.run import RunConfig
from earl.errors import CheckpointError, ConfigError

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: earl export runs/tictactoe --best --to exported --json")
def export(
    run: NamedRun,
    to: Annotated[Path, typer.Option(help="Directory to write; it must not exist.")],
    version: Annotated[int, typer.Option(min=0, help="Of this policy version; 0: the newest.")] = 0,
    best: Annotated[bool, typer.Option("--best", help="Of the version with the best evaluation.")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="Of the newest version (the default).")] = False,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16; the run's model.dtype if empty.")] = "",
    adapter: Annotated[bool, typer.Option("--adapter", help="Adapters alone, as PEFT reads them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a run's checkpoint as a directory that transformers, vLLM and SGLang load.

    Configuration, tokenizer and chat template are the model's that the run started from; the weights are
    read and written tensor by tensor, whatever the number of ranks that saved them. Adapters are merged.
    """
    if (version > 0) + best + latest > 1:
        raise ConfigError("--version, --best and --latest are three ways to say which", "give one of them")
    path = write(run, to, "best" if best else version or "latest", dtype, adapter=adapter)
    sys.stderr.write(f"written: {to}, from {path}\n")
    if as_json:
        sys.stdout.write(json.dumps({"directory": str(to), "checkpoint": str(path)}) + "\n")


def write(
    run: Path, to: Path, which: int | Literal["best", "latest"], dtype: str = "", *, adapter: bool = False
) -> Path:
    """Export one version; returns the checkpoint that it came from. `to` appears whole or not at all.

    Raises ConfigError (no run, `to` exists, an unknown dtype) and CheckpointError.
    """
    if not (run / "run.json").is_file():
        raise ConfigError(f"{run} is no run's directory: it has no run.json", "give runs/NAME")
    if to.exists() or to.is_symlink():
        raise ConfigError(f"{to} exists already", "choose another --to, or remove it")
    if dtype not in ("", "float32", "bfloat16"):
        raise ConfigError(f"--dtype {dtype} is neither float32 nor bfloat16", "give one of the two")
    config = RunConfig.model_validate_json((run / "run.json").read_bytes())
    path = find(run / "checkpoints", which)

    import torch  # heavy: after what can be wrong was checked

    from earl.models.spec import load_spec
    from earl.models.weights import Checkpoint, save_checkpoint
    from services.trainer.checkpoint.reader import SavedModel

    model = run / "model"
    dtype = dtype or config.model.weight_dtype
    if path == model.resolve():
        if adapter:
            raise ConfigError(
                f"version 1 of {run} is the model it began with: no adapters", "leave --adapter out"
            )
        saved, base = None, Checkpoint(model)
        tensors = ((name, base.read(name).to(getattr(torch, dtype))) for name in load_spec(model).shapes())
    else:
        saved = SavedModel(path, model)
        tensors = saved.tensors(getattr(torch, dtype))
    to.parent.mkdir(parents=True, exist_ok=True)
    if adapter:
        _write_adapter(saved, to)
    else:
        save_checkpoint(to, model, tensors, dtype=dtype)
    return path


def find(directory: Path, which: int | Literal["best", "latest"]) -> Path:
    """The checkpoint of a version, the newest or the best. Raises CheckpointError, naming those there are."""
    from services.trainer.checkpoint.retention import BEST, checkpoints

    existing = checkpoints(directory)
    names = ", ".join(path.name for path in existing) or "none"
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
        raise CheckpointError(f"{directory} has no checkpoint {which}", f"there are: {names}")
    return path


def _write_adapter(saved, to: Path) -> None:
    from safetensors.torch import save_file

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
    partial = to.with_name(f".{to.name}.partial-{os.getpid()}")
    partial.mkdir()
    try:
        tensors = {name: tensor.contiguous() for name, tensor in saved.adapter_tensors()}
        save_file(tensors, partial / "adapter_model.safetensors", metadata={"format": "pt"})
        (partial / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        os.rename(partial, to)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
