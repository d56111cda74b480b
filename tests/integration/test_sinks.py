"""TensorBoard and W&B for real: what their own readers find; and a run beside a sink that fails."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from earl.cli.sink import app
from tests.support.recorded import recorded

ROOT = Path(__file__).resolve().parents[2]
WRITTEN_S = 20.0
SMALL = {
    "model.scratch.hidden_size": "32",
    "model.scratch.layers": "1",
    "model.scratch.intermediate_size": "64",
    "model.scratch.heads": "4",
    "model.scratch.kv_heads": "4",
    "warmup.minibatches": "1",
    "warmup.passes": "1",
    "trainer.minibatches": "1",
    "trainer.passes": "1",
    "warmup.batches": "2",
    "warmup.batch_episodes": "16",
    "scheduler.group_size": "4",
    "scheduler.batch_groups": "4",
    "scheduler.steps": "3",
    "evaluation.episodes": "4",
    "rollout.max_sequences": "16",
    "obs.sinks": '["tensorboard", "wandb"]',
}


def tensorboard_of(directory: Path, tag: str) -> list[tuple[int, float]]:
    """(step, value) as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def records_of(data: bytes) -> Iterator[bytes]:
    """Of a W&B file: a header of 7 bytes, then LevelDB's log format, blocks of 32 KiB with whole and cut
    records."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        left = (1 << 15) - at % (1 << 15)
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def wandb_of(directory: Path) -> list[dict[str, float]]:
    """What an offline run's file holds for each logged point."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for file in sorted(directory.glob("offline-run-*/*.wandb")):
        data = file.read_bytes()
        assert data.startswith(b":W&B")
        for packed in records_of(data):
            record = wandb_internal_pb2.Record.FromString(packed)  # type: ignore[attr-defined]
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                names = (one.key or "/".join(one.nested_key) for one in items)
                found.append(
                    {name: json.loads(one.value_json) for name, one in zip(names, items, strict=True)}
                )
    return found


def logged_of(directory: Path, steps: int) -> list[dict[str, float]]:
    """The training steps of an offline run; W&B's own process may still be writing the last ones."""
    ends_s = time.monotonic() + WRITTEN_S
    while True:
        found = [one for one in wandb_of(directory) if "train/loss" in one]
        if len(found) >= steps or time.monotonic() > ends_s:
            return found
        time.sleep(0.2)


@pytest.mark.slow
def test_tensorboard_reads_what_it_is_given(tmp_path: Path):
    recorded(tmp_path, steps=4)
    for points in (4 + 2, 0):
        said = CliRunner().invoke(app, [str(tmp_path), "--to", "tensorboard", "--json"])
        assert said.exit_code == 0, said.exception
        assert json.loads(said.stdout) == {"sink": "tensorboard", "points": points}
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    expected = [(line["version"], pytest.approx(line["reward_mean"], rel=1e-6)) for line in lines]
    assert tensorboard_of(tmp_path / "tensorboard", "train/reward_mean") == expected
    assert len(tensorboard_of(tmp_path / "tensorboard", "evaluation/win_rate")) == 2


@pytest.mark.slow
def test_wandb_offline_holds_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    recorded(tmp_path, steps=4, overrides=[("bus.redis_url", "redis://:secret@127.0.0.1:1/0")])
    said = CliRunner().invoke(app, [str(tmp_path), "--to", "wandb", "--json"])
    assert said.exit_code == 0, said.exception
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = logged_of(tmp_path / "wandb", len(lines))
    assert [one["version"] for one in logged] == [line["version"] for line in lines]
    assert [one["train/reward_mean"] for one in logged] == [line["reward_mean"] for line in lines]
    written = b"".join(file.read_bytes() for file in (tmp_path / "wandb").rglob("*") if file.is_file())
    assert b"tictactoe" in written and b"secret@" not in written


@pytest.mark.slow
def test_a_run_goes_on_without_a_sink_that_fails(tmp_path: Path):
    (tmp_path / "tensorboard.py").write_text("raise RuntimeError('broken')\n")
    dotted = [text for key, value in SMALL.items() for text in (f"--{key}", value)]
    command = [sys.executable, "-m", "earl.cli.main", "train", str(ROOT / "examples" / "tictactoe.toml")]
    done = subprocess.run(
        [*command, "--name", "sunk", "--runs-dir", str(tmp_path), *dotted, "--plain", "--json"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "WANDB_MODE": "offline"},
    )
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "sunk" / "logs" / "sink-tensorboard.log").read_text()
    assert "broken" in log and "the run goes on without it" in log
    versions = [one["version"] for one in logged_of(tmp_path / "sunk" / "wandb", 3)]
    lines = (tmp_path / "sunk" / "metrics.jsonl").read_text().splitlines()
    assert versions == [json.loads(line)["version"] for line in lines if '"phase": "train"' in line]
    assert len(versions) == 3
