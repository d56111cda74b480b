"""Every number of metrics.jsonl as a curve, also while the run goes on and after it was rolled back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from earl.cli.report.sections import series
from earl.cli.report.sections.series import MetricTable, thinned


def append(file: Path, *records: dict[str, Any]) -> None:
    with file.open("a") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)


def step(number: int, **figures: Any) -> dict[str, Any]:
    return {"step": number, "version": number + 1, "time_s": 2.0 * number, **figures}


def test_numbers_are_read_as_the_file_grows(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    table = MetricTable(file)
    assert not table.update() and table.names == []
    append(file, step(1, loss=0.5, phase="train"), step(2, loss=0.25, nested={"p50": 7}))
    assert table.update() and table.names == ["loss", "nested.p50", "version"]
    assert table.series("loss", "step") == [(1.0, 0.5), (2.0, 0.25)]
    assert table.series("nested.p50", "time_s") == [(4.0, 7.0)]
    append(file, step(3, loss=0.125))
    assert table.update() and not table.update()
    assert table.series("loss", "time_s")[-1] == (6.0, 0.125)
    assert table.series("nope", "step") == [] == table.series("phase", "step")


def test_a_step_that_was_trained_again_counts_once(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    append(file, *(step(number, loss=float(number)) for number in range(1, 6)))
    table = MetricTable(file)
    table.update()
    append(file, step(3, loss=30.0), step(4, loss=40.0))
    table.update()
    assert table.series("loss", "step") == [(1.0, 1.0), (2.0, 2.0), (3.0, 30.0), (4.0, 40.0)]


def test_a_file_that_is_another_one_is_read_anew(tmp_path: Path):
    file = tmp_path / "metrics.jsonl"
    append(file, step(1, loss=0.5), step(2, loss=0.4))
    table = MetricTable(file)
    table.update()
    file.unlink()
    append(file, step(1, entropy=1.5))
    assert table.update() and table.names == ["entropy", "version"]


def test_memory_is_bounded_by_steps_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(series, "STEPS", 8)
    monkeypatch.setattr(series, "NAMES", 5)
    file = tmp_path / "metrics.jsonl"
    table = MetricTable(file)
    for number in range(1, 30):
        append(file, step(number, loss=float(number), **{f"n{number}": 1.0}))
        table.update()
    points = table.series("loss", "step")
    assert len(points) <= 8 and points[-1] == (29.0, 29.0) and points == sorted(points)
    assert len(table.names) <= 5


def test_a_long_curve_is_thinned_to_means_that_keep_its_end():
    every = [(float(x), float(x % 2)) for x in range(10_000)]
    points = thinned(every)
    assert len(points) <= series.POINTS and points[-1][0] == 9_999.0
    assert {round(value, 1) for _, value in points[:-1]} <= {0.4, 0.5, 0.6}
    assert thinned(every[:10]) == every[:10]
