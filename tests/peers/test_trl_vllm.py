"""TRL with vLLM as its sampler on a CPU: the adapter of `earl bench e2e` hands over what was trained."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.e2e.task import WORDS
from benchmarks.e2e.trl_process import SAMPLERS
from benchmarks.e2e.vllm_sampler import ENVIRONMENT
from benchmarks.record.checkout import ROOT
from earl.config.model import ScratchModel
from earl.models.create import write_scratch
from tests.support import needs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
TRAIN_S = 380


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_the_sampler_has_the_weights_of_the_last_step(mode: str, tmp_path: Path) -> None:
    home = SAMPLERS["vllm"]
    if not home.python.exists():
        needs.lacking(f"there is no {home.directory}: make {home.make}")
    # Heads of a size that vLLM's attention on CPUs has.
    shape = ScratchModel(
        hidden_size=64,
        intermediate_size=64,
        layers=2,
        heads=2,
        kv_heads=2,
        max_positions=64,
        # So little that answers differ.
        embedding_std=0.05,
        words=WORDS,
    )
    write_scratch(tmp_path / "model", shape, 1, "float32")
    done = subprocess.run(
        [str(home.python), "-m", "tests.peers.trl_vllm_side", str(tmp_path), mode],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=TRAIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["moved"] > 0.1
    assert len(answer["differences"]) == 3 and min(answer["lengths"]) >= 1
    assert max(answer["differences"]) < 1e-3
