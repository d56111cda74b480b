"""The KV of engines where the run file leaves it open: decided by the launch, kept by a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.stack import kv_size
from earl.stack.kv_size import with_kv_tokens
from earl.stack.placement import place
from tests.support.paths import ROOT

GIB = 1 << 30


def on_gpu(**rollout: Any) -> RunConfig:
    config = load_run(ROOT / "examples" / "qwen2_1b5_1gpu.toml", elsewhere=True)
    return config.model_copy(update={"rollout": config.rollout.model_copy(update=rollout)})


def settled(config: RunConfig, gib: int, run_json: Path | None = None, gpus: int = 1) -> int:
    return with_kv_tokens(config, place(config, gpus), gib * GIB, run_json).rollout.kv_tokens


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
    monkeypatch.setattr(kv_size, "_COMMAND", ("-c", "raise SystemExit(3)"))
    assert settled(on_gpu(kv_tokens=9000), 80) == 9000
    assert settled(on_gpu(device="cpu"), 80) == 0
    with pytest.raises(ConfigError, match=r"cannot be predicted.*give rollout.kv_tokens a number"):
        settled(on_gpu(), 80)


def test_a_prediction_that_is_refused_says_why(tmp_path: Path):
    config = on_gpu()
    missing = config.model_copy(
        update={"model": config.model.model_copy(update={"path": str(tmp_path), "shape": None})}
    )
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        settled(missing, 80)
