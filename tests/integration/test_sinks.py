"""TensorBoard and W&B for real: what their own readers find; and a run beside a sink that fails."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from earl.cli.show.sink import app
from tests.support.launched import launch_in
from tests.support.recorded import recorded

# A run of so many ends long after a sink that fails was started for the last time.
STEPS = 60


def tensorboard_of(directory: Path, tag: str) -> list[tuple[int, float]]:
    """(step, value) as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def records_of(data: bytes) -> Iterator[bytes]:
    """Yields the records of a W&B file: a header of 7 bytes, then LevelDB's log format, blocks of 32 KiB with
    whole and cut records."""
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
    """Returns what an offline run's file has for each logged point, once W&B's own process has ended: it
    writes them for as long as it runs."""
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
    import wandb

    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    recorded(tmp_path, steps=4, overrides=[("bus.redis_url", "redis://:secret@127.0.0.1:1/0")])
    said = CliRunner().invoke(app, [str(tmp_path), "--to", "wandb", "--json"])
    assert said.exit_code == 0, said.exception
    wandb.teardown()  # as at the end of a process of the command's own
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    logged = [one for one in wandb_of(tmp_path / "wandb") if "train/loss" in one]
    assert [one["version"] for one in logged] == [line["version"] for line in lines]
    assert [one["train/reward_mean"] for one in logged] == [line["reward_mean"] for line in lines]
    written = b"".join(file.read_bytes() for file in (tmp_path / "wandb").rglob("*") if file.is_file())
    assert b"tictactoe" in written and b"secret@" not in written


@pytest.mark.slow
def test_a_run_goes_on_without_a_sink_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "tensorboard.py").write_text("raise RuntimeError('broken')\n")
    with launch_in(tmp_path) as run:
        sinks = '["tensorboard", "wandb"]'
        run.start(scheduler__steps=str(STEPS), evaluation__episodes="4", obs__sinks=sinks)
        code, _ = run.finish()
        assert code == 0, run.said
        run.assert_nothing_left()
    log = (run.run_directory / "logs" / "sink-tensorboard.log").read_text()
    assert "broken" in log and "the run continues without it" in log
    logged = wandb_of(run.run_directory / "wandb")
    versions = [one["version"] for one in logged if "train/loss" in one]
    lines = (run.run_directory / "metrics.jsonl").read_text().splitlines()
    assert versions == [json.loads(line)["version"] for line in lines if '"phase": "train"' in line]
    assert len(versions) == STEPS
