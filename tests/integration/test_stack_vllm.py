"""A whole run whose engine is vLLM: `earl train`, every process real. `make test-vllm` runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import engines

pytestmark = pytest.mark.skipif(
    "vllm" not in engines.SELECTED, reason="needs vLLM's environment: make test-vllm"
)

TICTACTOE = Path(__file__).resolve().parents[2] / "examples" / "tictactoe.toml"
MARK = "EARL_TEST_RUN"
SMALL = {
    "rollout.engine": "vllm",
    "rollout.device": "cpu",
    "rollout.max_sequences": "16",
    "stack.start_s": "300",
    # Heads of 32: the smallest that vLLM's attention on CPUs takes.
    "model.scratch.hidden_size": "64",
    "model.scratch.intermediate_size": "64",
    "model.scratch.layers": "1",
    "model.scratch.heads": "2",
    "model.scratch.kv_heads": "2",
    "warmup.batches": "2",
    "warmup.batch_episodes": "16",
    "warmup.minibatches": "1",
    "warmup.passes": "1",
    "trainer.minibatches": "1",
    "trainer.passes": "1",
    "trainer.checkpoint_every": "2",
    "scheduler.group_size": "4",
    "scheduler.batch_groups": "4",
    "scheduler.steps": "4",
    "scheduler.staleness": "0",
    "evaluation.episodes": "16",
}


def marked(name: str) -> list[str]:
    """Command lines of live processes of this run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == name:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def test_a_run_trains_on_what_vllm_sampled(tmp_path: Path):
    dotted = [text for key, value in SMALL.items() for text in (f"--{key}", value)]
    name = f"v{os.getpid()}"
    command = [sys.executable, "-m", "earl.cli.main", "train", str(TICTACTOE), "--name", name]
    done = subprocess.run(
        [*command, "--runs-dir", str(tmp_path), *dotted, "--plain", "--json"],
        capture_output=True,
        text=True,
        timeout=550,
        env={**os.environ, MARK: name},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["issued"] == sum(figures[part] for part in ("trained", "evaluated", "dropped", "live"))
    records = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    trained = [record for record in records if record["phase"] == "train"]
    assert len(trained) == 4
    # What vLLM said of each token and what the trainer computes for it are the same distribution.
    assert all(abs(record["logprob_mismatch"]) < 1e-4 for record in trained), trained
    assert marked(name) == []
    assert [file for file in os.listdir("/dev/shm") if name in file] == []
