"""`earl bench scaling`: its run files, a run's figures from samples, and the parts of linear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.children import MeasurementWrong
from benchmarks.scaling import (
    PACED,
    REAL,
    SETTINGS,
    device_table,
    of_workers,
    run_figures,
    summary,
)
from benchmarks.usage import UsageSample
from earl.cli.run.demo import RUN_FILE, example
from earl.config.load import load_run


def test_workers_are_engines_of_one_device_at_the_tables_speed(tmp_path: Path):
    table = tmp_path / "device.csv"
    table.write_text(device_table(40.0))
    config = load_run(example(RUN_FILE), [*SETTINGS, ("paced.table", str(table)), *of_workers(16, 6)])
    assert config.rollout.workers == 16 and config.scheduler.batch_groups == 16
    assert config.pace is not None and config.pace.table.stages == ("rollout",)
    assert config.pace.table.step_s("rollout", (1, 1, 1), 66, 8) == pytest.approx(8 / 40.0)


def sample(steps: int, at_s: float, **cpu_s: float) -> UsageSample:
    return UsageSample(steps, steps * 100.0, at_s, cpu_s)


def test_the_first_and_the_last_steps_are_left_out():
    samples = [sample(n, 2.0 * n, engine=3.0 * n, scheduler=0.5 * n) for n in range(1, 7)]
    figures = run_figures(samples)
    assert (figures["steps"], figures["tokens"], figures["seconds"]) == (3, 300.0, 6.0)
    assert figures["tokens_per_s"] == 50.0 and figures["cores"] == pytest.approx(1.75)
    assert figures["cpu_us_by_kind"] == pytest.approx({"engine": 30_000.0, "scheduler": 5_000.0})
    with pytest.raises(MeasurementWrong, match=r"only 3 ends .* give more --steps"):
        run_figures(samples[:3])


def run(kind: str, workers: int, tokens_per_s: float | None) -> dict[str, Any]:
    costs = {"engine": 900.0, "scheduler": 100.0} if tokens_per_s else {}
    return {
        "kind": kind, "workers": workers, "tokens_per_s": tokens_per_s, "cpu_us_by_kind": costs,
        "cores": 1.0 if tokens_per_s else None, "failure": "" if tokens_per_s else "it was too slow",
    }  # fmt: skip


def test_runs_scale_up_to_the_first_that_has_less_than_its_part():
    runs = [run(PACED, 1, 80.0), run(PACED, 2, 156.0), run(PACED, 4, 260.0), run(PACED, 8, 640.0)]
    figures = summary([*runs, run(PACED, 16, None), run(REAL, 1, 500.0), run(REAL, 2, 600.0)])
    assert figures["of_linear"] == {"1": 1.0, "2": 0.975, "4": 0.812, "8": 1.0, "16": None}
    assert figures["of_linear_real"] == {"1": 1.0, "2": 0.6}
    assert figures["workers_at_90"] == 2 and figures["most_tokens_per_s"] == 640.0
    assert figures["cpu_us_per_token"] == 1000.0 and figures["failed"] == ["16 paced"]
    assert summary([])["workers_at_90"] == 0
