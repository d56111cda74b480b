"""`earl export`: what transformers loads computes what the trainer does; adapters as PEFT reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from earl.config.model import ScratchModel
from earl.errors import CheckpointError, ConfigError
from earl.models.export_record import read_record
from services.trainer.checkpoint import checkpoint
from services.trainer.checkpoint.export import app, write
from services.trainer.checkpoint.manifest import FILE
from services.trainer.checkpoint.retention import mark_best
from services.trainer.ranks.process_group import Group
from services.trainer.step.step import Stepper
from tests.support.policy import alone, configuration, model_directory, progress_at, stepper_for, train

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


group = alone


def run_of(group: Group, path: Path, family: str, **trainer: object) -> tuple[Path, Stepper]:
    """A run directory with checkpoints of versions 2 and 3, and the trainer as it was at 3."""
    scratch = ScratchModel.model_validate(
        {"family": family, "hidden_size": 32, "intermediate_size": 24, "layers": 2, "heads": 4, "kv_heads": 2}
    )
    run = path / "run"
    config = configuration(**trainer)
    model = model_directory(run, scratch)
    (model / "chat_template.jinja").write_text("{{ messages }}")
    (run / "run.json").write_text(config.model_dump_json())
    stepper = stepper_for(group, model, config)
    for version in (2, 3):
        train(stepper, version, first_of_phase=version == 2)
        progress = progress_at(stepper, version)
        checkpoint.save(run / "checkpoints", stepper, group, progress, "hash", keep=2)
    return run, stepper


def logits(stepper: Stepper, tokens: torch.Tensor) -> torch.Tensor:
    decoder = stepper.policy.decoder
    with torch.no_grad():
        hidden = decoder(tokens, torch.arange(len(tokens)), [len(tokens)])
        out = decoder.logits(hidden)
    stepper.policy.reshard()
    return out


@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_transformers_computes_what_the_trainer_does(
    group: Group, tmp_path: Path, family: str, lora_rank: int
) -> None:
    run, stepper = run_of(group, tmp_path, family, lora_rank=lora_rank)
    to = tmp_path / "out" / "model"
    assert write(run, to, "latest").checkpoint == run / "checkpoints" / "step-3"
    model = AutoModelForCausalLM.from_pretrained(to).eval()
    assert model.dtype is torch.float32 and model.config.model_type == family
    tokens = torch.tensor([1, 3, 2, 0, 3, 1])
    with torch.no_grad():
        assert (model(tokens[None]).logits[0] - logits(stepper, tokens)).abs().max() < 1e-4
    assert AutoTokenizer.from_pretrained(to).chat_template == "{{ messages }}"
    with pytest.raises(ConfigError, match="exists already"):
        write(run, to, "latest")


def test_versions_the_best_and_another_dtype(group: Group, tmp_path: Path) -> None:
    run, _ = run_of(group, tmp_path, "llama")
    mark_best(run / "checkpoints", 2)
    runner = CliRunner()
    for number, arguments in enumerate((["--version", "2"], ["--best", "--dtype", "bfloat16"], ["--latest"])):
        done = runner.invoke(app, [str(run), "--to", str(tmp_path / f"out-{number}"), *arguments])
        assert done.exit_code == 0, done.output
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / f"out-{number}") for number in range(3)]
    name = "model.layers.1.mlp.up_proj.weight"
    second, best, newest = (model.state_dict()[name] for model in models)
    assert best.dtype is torch.bfloat16 and torch.equal(best, second.bfloat16())
    assert not torch.equal(second, newest)


def test_the_best_may_be_what_the_run_began_with(group: Group, tmp_path: Path) -> None:
    run, _ = run_of(group, tmp_path, "llama")
    mark_best(run / "checkpoints", 1)
    for which in ("best", 1):
        to = tmp_path / f"out-{which}"
        exported = write(run, to, which, "bfloat16")
        assert exported.checkpoint == (run / "model").resolve() and exported.record.version == 1
        model, start = (AutoModelForCausalLM.from_pretrained(one).state_dict() for one in (to, run / "model"))
        assert all(torch.equal(model[name], start[name].bfloat16()) for name in start)
    with pytest.raises(ConfigError, match="no adapters"):
        write(run, tmp_path / "adapter", "best", adapter=True)
    mark_best(run / "checkpoints", 2)
    assert write(run, tmp_path / "out-2", "best").checkpoint == run / "checkpoints" / "step-2"


def test_a_run_with_protected_environments_exports_the_best_version(group: Group, tmp_path: Path) -> None:
    run, _ = run_of(group, tmp_path, "llama")
    assert write(run, tmp_path / "newest", "default").checkpoint.name == "step-3"
    table = json.loads((run / "run.json").read_text())
    entry = {**table.pop("environment"), "protected": True, "reward_range": [-1, 1]}
    (run / "run.json").write_text(json.dumps({**table, "environments": [entry]}))
    with pytest.raises(CheckpointError, match=r"no version of .* has been evaluated, and the run protects"):
        write(run, tmp_path / "none", "default")
    mark_best(run / "checkpoints", 2)
    label = entry.get("label") or entry["name"]
    kept = {f"environments.{label}.kept": 0.5, f"environments.{label}.retained": 0.0}
    lines = [{"name": "start", "version": 2}, {"name": "final", "version": 3, **kept}]
    (run / "evaluations.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = CliRunner().invoke(app, [str(run), "--to", str(tmp_path / "best")])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith(f"written: {tmp_path / 'best'}, from {run / 'checkpoints' / 'step-2'}\n")
    assert done.stderr.splitlines()[-2:] == [
        f"version 3 is refused: of the first score, {label} 0.50 is left",
        "no later version kept every protected environment: the best one, which `earl export` takes, is 2, "
        "where the run began",
    ]
    done = CliRunner().invoke(app, [str(run), "--to", str(tmp_path / "latest"), "--latest"])
    assert done.exit_code == 0 and "step-3" in done.stderr and "refused" not in done.stderr


@pytest.mark.parametrize("adapter", [False, True])
@pytest.mark.parametrize(
    ("umask", "file_mode", "directory_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)]
)
def test_all_files_have_the_mode_of_new_files(
    group: Group, tmp_path: Path, umask: int, file_mode: int, directory_mode: int, adapter: bool
) -> None:
    run, _ = run_of(group, tmp_path, "llama", lora_rank=2)
    for number, path in enumerate(sorted(path for path in run.rglob("*") if path.is_file())):
        path.chmod((0o400, 0o640, 0o755)[number % 3])
    before = os.umask(umask)
    try:
        write(run, tmp_path / "out", "latest", adapter=adapter)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert len(modes) >= 7 and set(modes.values()) == {file_mode}, modes
    assert (tmp_path / "out").stat().st_mode & 0o777 == directory_mode


def test_what_was_written_is_said(group: Group, tmp_path: Path) -> None:
    run, _ = run_of(group, tmp_path, "llama")
    figures = {"name": "end", "version": 3, "episodes": 4, "done": 4, "failed": 0, "mean_reward": 0.5}
    later = {**figures, "version": 4, "mean_reward": 0.75, "rewards": [1, 1, 1, 0]}
    (run / "evaluations.jsonl").write_text(f"{json.dumps(figures)}\n{json.dumps(later)}\n")
    done = CliRunner().invoke(app, [str(run), "--to", str(tmp_path / "out"), "--json"])
    assert done.stderr.splitlines() == [
        f"written: {tmp_path / 'out'}, from {run / 'checkpoints' / 'step-3'}",
        "  the base model's chat_template.jinja: the run has model.chat = false, no prefixes",
        '  generation_config.json: stops at "<eos>", temperature 1, at most 16 new tokens',
        "  README.md, earl.json: t, version 3, reward 0.50 over 4 episodes",
    ]
    values = json.loads(done.stdout)
    assert values["checkpoint"].endswith("step-3") and values["evaluation"] == {
        name: figures[name] for name in figures if name != "version"
    }
    assert '"run": "t"' in (tmp_path / "out" / "earl.json").read_text()


def test_what_cannot_be_exported_is_said(group: Group, tmp_path: Path) -> None:
    run, _ = run_of(group, tmp_path, "llama")
    with pytest.raises(ConfigError, match=r"no run\.json"):
        write(tmp_path, tmp_path / "out", "latest")
    with pytest.raises(CheckpointError, match="no checkpoint 9; there are: step-3, step-2"):
        write(run, tmp_path / "out", 9)
    with pytest.raises(CheckpointError, match="no checkpoint best"):
        write(run, tmp_path / "out", "best")
    with pytest.raises(ConfigError, match="float16"):
        write(run, tmp_path / "out", "latest", "float16")
    with pytest.raises(ConfigError, match="no adapters"):
        write(run, tmp_path / "out", "latest", adapter=True)
    data = run / "checkpoints" / "step-3" / "rank-00000.safetensors"
    data.write_bytes(data.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match="checksum"):
        write(run, tmp_path / "out", "latest")
    (data.parent / FILE).write_text("{}")
    with pytest.raises(CheckpointError, match="manifest"):
        write(run, tmp_path / "out", 3)
    assert not list(tmp_path.glob("*out*"))


def test_adapters_alone_in_pefts_format(group: Group, tmp_path: Path) -> None:
    run, stepper = run_of(group, tmp_path, "llama", lora_rank=2, lora_alpha=8.0, lora_targets=["k_proj"])
    to = tmp_path / "adapter"
    write(run, to, "latest", adapter=True)
    settings = json.loads((to / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["target_modules"]) == (2, 8.0, ["k_proj"])
    trained = {shard.name: shard.local for shard in stepper.policy.shards}
    with safe_open(to / "adapter_model.safetensors", framework="pt") as file:
        names = set(file.keys())
        stem = "model.layers.1.self_attn.k_proj."
        for letter in "AB":
            tensor = file.get_tensor(f"base_model.model.{stem}lora_{letter}.weight")
            assert torch.equal(tensor, trained[f"{stem}lora_{letter.lower()}"])
    assert len(names) == len(trained) == 4
    assert read_record(to) is not None and (to / "README.md").is_file()
    assert AutoTokenizer.from_pretrained(to).chat_template == "{{ messages }}"
    assert not (to / "config.json").exists()


def test_the_models_own_files_are_checked(group: Group, tmp_path: Path) -> None:
    run, _ = run_of(group, tmp_path, "llama", lora_rank=2)
    file = run / "model" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="adapters of other weights"):
        write(run, tmp_path / "out", "latest")
