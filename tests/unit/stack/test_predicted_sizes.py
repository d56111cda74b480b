"""KV and checkpointing where the run file leaves them open: decided by the launch, kept by a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack import predicted_sizes
from earl.stack.placement import place
from earl.stack.predicted_sizes import with_predicted_sizes
from tests.support.paths import ROOT
from tests.support.runs import tictactoe

GIB = 1 << 30


def on_gpu(**rollout: Any) -> RunConfig:
    config = load_run(ROOT / "examples" / "qwen2_1b5_1gpu.toml", elsewhere=True)
    return config.model_copy(update={"rollout": config.rollout.model_copy(update=rollout)})


def settled(config: RunConfig, gib: int, run_json: Path | None = None, gpus: int = 1) -> int:
    return with_predicted_sizes(config, place(config, gpus), gib * GIB, run_json).rollout.kv_tokens


def test_a_launch_decides_by_the_memory_that_is_there_and_a_resume_keeps_it(tmp_path: Path):
    config = on_gpu(max_sequences=512)
    large, small = settled(config, 80), settled(config, 60)
    assert config.rollout.max_context_tokens < small < large
    run_json = tmp_path / "run.json"
    assert settled(config, 60, run_json) == small  # a resume of what was never launched
    before = on_gpu(max_sequences=512, kv_tokens=large)
    run_json.write_text(before.model_dump_json(), encoding="utf-8")
    assert settled(config, 60, run_json) == large


def test_what_is_given_or_on_the_processor_is_not_predicted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(predicted_sizes, "_COMMAND", ("-c", "raise SystemExit(3)"))
    assert settled(on_gpu(kv_tokens=9000), 80) == 9000
    assert settled(on_gpu(device="cpu"), 80) == 0
    with pytest.raises(ConfigError, match=r"cannot be predicted.*give rollout.kv_tokens and"):
        settled(on_gpu(), 80)


def test_a_prediction_that_is_refused_says_why(tmp_path: Path):
    config = on_gpu()
    missing = config.model_copy(
        update={"model": config.model.model_copy(update={"path": str(tmp_path), "shape": None})}
    )
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        settled(missing, 80)


def training(**trainer: Any) -> RunConfig:
    config = on_gpu()
    return config.model_copy(update={"trainer": config.trainer.model_copy(update=trainer)})


def checkpoints(config: RunConfig, gib: int, run_json: Path | None = None, gpus: int = 1) -> bool | str:
    settled = with_predicted_sizes(config, place(config, gpus), gib * GIB, run_json)
    return settled.trainer.activation_checkpointing


def test_activations_are_computed_again_where_they_would_not_fit(tmp_path: Path):
    auto, run_json = training(activation_checkpointing="auto"), tmp_path / "run.json"
    assert [checkpoints(auto, gib) for gib in (60, 400)] == [True, False]
    run_json.write_text(training(activation_checkpointing=False).model_dump_json(), encoding="utf-8")
    assert checkpoints(auto, 60, run_json) is False
    # What the run file says stays; and on a processor nothing changes.
    assert checkpoints(training(activation_checkpointing=True), 400) is True
    assert checkpoints(training(activation_checkpointing=False, device="cpu"), 60) is False


def test_on_the_processor_activations_are_kept_and_nothing_is_predicted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(predicted_sizes, "_COMMAND", ("-c", "raise SystemExit(3)"))
    assert checkpoints(tictactoe(Path("x")), 0, gpus=0) is False
    on_cpu = training(activation_checkpointing="auto", device="cpu")
    settings = on_cpu.rollout.model_copy(update={"kv_tokens": 9000})
    assert checkpoints(on_cpu.model_copy(update={"rollout": settings}), 8) is False


def test_without_a_bound_contexts_end_at_what_the_machine_holds_and_a_resume_keeps_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scratch = {"scratch": {"max_positions": 0}}
    config = tictactoe(tmp_path, rollout={"max_context_tokens": 0}, model=scratch)
    run_json, placement = tmp_path / "run.json", place(config, 0)
    decided = with_predicted_sizes(config, placement, 0)
    held, kv_tokens = decided.rollout.held_context_tokens, decided.rollout.kv_tokens
    assert 10_000 < held <= kv_tokens and decided.context_tokens == held
    run_json.write_text(decided.model_dump_json(), encoding="utf-8")
    # Another machine has other memory, and the run's engines and model are made.
    monkeypatch.setattr(predicted_sizes, "host_bytes", lambda: 8 * GIB)
    assert with_predicted_sizes(config, placement, 0).context_tokens < held
    assert with_predicted_sizes(config, placement, 0, run_json) == decided
    given = tictactoe(tmp_path, rollout={"max_context_tokens": 0, "kv_tokens": 300}, model=scratch)
    decided = with_predicted_sizes(given, placement, 0)
    # An engine counts whole pages, of 64 tokens here.
    assert (decided.context_tokens, decided.rollout.kv_tokens) == (256, 300)
