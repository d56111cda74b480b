"""`earl profile` on tiny models: real engines, a real trainer, real ranks."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from earl.config.run import RunConfig
from earl.obs.memory import host_bytes
from earl.parallelism import Parallelism
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import ProfileTable
from services.scheduler.profiler.command import MeasuredProfile, measure

ROOT = Path(__file__).resolve().parents[2]
# Enough for every window on a busy machine; what is measured ends long before.
SECONDS = 400.0


def run(max_positions: int = 128, **sections) -> RunConfig:
    scratch = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "heads": 4,
        "kv_heads": 2,
        "max_positions": max_positions,
        "words": ["a", "b"],
    }
    defaults = {"device": "cpu"}
    return RunConfig.model_validate(
        {
            "name": "t",
            "environment": {"name": "e"},
            "model": {"scratch": scratch},
            **{name: defaults | sections.get(name, {}) for name in ("rollout", "trainer", "reference")},
        }
    )


async def profiled(
    config: RunConfig, stages: list[str], grid: tuple, kept: Path
) -> tuple[list[MeasuredProfile], list[str]]:
    found: list[MeasuredProfile] = []
    said: list[str] = []
    await measure(
        config, stages, *grid, seconds=SECONDS, say=said.append, measured=found, kept=kept, window_s=0.05
    )
    return found, said


def by_point(rows: list[ProfileRow]) -> dict[tuple, ProfileRow]:
    return {(row.parallelism, row.context_tokens, row.concurrency): row for row in rows}


@pytest.mark.slow
async def test_rollout_and_trainer_are_measured_once(tmp_path) -> None:
    grid = ([16, 64], [1, 8])
    found, said = await profiled(run(), ["rollout", "trainer"], grid, tmp_path)
    assert [one.stage for one in found] == ["rollout", "trainer"]
    for one in found:
        assert one.lacking == []
        rows = by_point(one.rows)
        assert set(rows) == {(Parallelism(), length, count) for length in (16, 64) for count in (1, 8)}
        assert all(
            row.tokens_per_device_s and 0 < (row.peak_memory_fraction or 0) < 0.5 for row in rows.values()
        )
        table = ProfileTable(one.rows, one.stage)
        assert table.predict(Parallelism(), 32, 4).source == "interpolated"
    assert len(said) == 8
    again, said = await profiled(run(), ["rollout", "trainer"], grid, tmp_path)
    assert [one.rows for one in again] == [one.rows for one in found] and said == []


@pytest.mark.slow
async def test_what_does_not_fit_is_a_row_and_the_rest_is_measured(tmp_path) -> None:
    # Of two layers' keys and values, two heads of 8 float32 each: twice what the machine has.
    count, token_bytes = 64, 2 * 2 * 2 * 8 * 4
    long = 2 * host_bytes() // (count * token_bytes)
    found, said = await profiled(run(long), ["rollout"], ([16, long], [count]), tmp_path)
    rows = by_point(found[0].rows)
    assert rows[Parallelism(), long, count].oom and not rows[Parallelism(), 16, count].oom
    assert found[0].lacking == [] and any("does not fit" in line for line in said)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_parallelism_of_every_stage(tmp_path) -> None:
    two = {"engines": 2, "kv_tokens": 256}
    config = run(rollout=two, reference={"dp": 2}, trainer={"ranks": 2, "kl_coefficient": 0.1})
    grid = ([16, 128], [1, 4])
    found, _ = await profiled(config, ["rollout", "reference", "trainer"], grid, tmp_path)
    rollout, reference, trainer = (by_point(one.rows) for one in found)
    layouts = {Parallelism(dp=2), Parallelism(tp=2)}
    assert {layout for layout, *_ in rollout} == {layout for layout, *_ in reference} == layouts
    assert {layout for layout, *_ in trainer} == {*layouts, Parallelism(cp=2)}
    assert all(one.lacking == [] for one in found)
    # Two engines hold 256 tokens each, an engine of two ranks 512.
    assert not any(row.oom for row in rollout.values())
    assert all(row.peak_memory_fraction for rows in (rollout, reference, trainer) for row in rows.values())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_is_interrupted_and_goes_on(tmp_path) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "table.csv"
    file.write_text('name = "t"\n[environment]\nname = "e"\n[rollout]\ndevice = "cpu"\n')
    code = "from services.scheduler.profiler.command import app; app()"
    command = [sys.executable, "-c", code, str(file), "--stage", "rollout", "--contexts", "16,32,64,128,256"]
    environment = {**os.environ, "EARL_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    first = subprocess.Popen(
        [*command, "--minutes", "4"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    kept = tmp_path / "profiles"
    ends = time.monotonic() + 120
    while not any(len(path.read_text().splitlines()) > 4 for path in kept.glob("*.jsonl")):
        assert first.poll() is None and time.monotonic() < ends
        time.sleep(0.1)
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=60)
    assert first.returncode == 130 and b"continues from here" in said
    second = subprocess.run(
        [*command, "--minutes", "0.5", "--json", "--out", str(out)],
        env=environment, capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    summary = json.loads(second.stdout.splitlines()[-1])
    with out.open() as written:
        assert len(list(csv.DictReader(written))) == len(summary["rows"])
    assert len(summary["rows"]) + len(summary["not_measured"]) == 15
