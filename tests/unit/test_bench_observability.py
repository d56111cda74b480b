"""earl bench observability: its figures from what runs wrote, and the collector that takes traces."""

import pytest

from benchmarks.observability import collector, summary, tokens_per_s
from earl.obs import tracing
from earl.obs.metrics import LineFile


def test_tokens_a_second_are_those_between_the_first_step_and_the_last(tmp_path):
    LineFile(tmp_path / "metrics.jsonl").write(
        {"phase": "warmup", "time_s": 1.0, "tokens": 1e6},
        {"phase": "train", "time_s": 10.0, "tokens": 1e6},
        {"phase": "train", "time_s": 11.0, "tokens": 100.0},
        {"phase": "train", "time_s": 14.0, "tokens": 300.0},
    )
    assert tokens_per_s(tmp_path) == 100.0


def test_the_cost_is_of_the_medians():
    runs = [
        {"side": side, "tokens_per_s": value}
        for side, values in {"off": (100.0, 200.0, 300.0), "on": (99.0, 190.0, 330.0)}.items()
        for value in values
    ]
    found = summary(runs)
    assert found["cost"] == pytest.approx(0.05)
    assert found["pairs"] == [pytest.approx(0.01), pytest.approx(0.05), pytest.approx(-0.1)]
    assert summary(runs[:1]) == {}


def test_the_collector_takes_spans():
    with collector() as (address, received), tracing.exporting(address, "scheduler", "run"):
        tracing.record("ticket", tracing.Tickets("run", 1, 1.0).parent(1), 1, 2, root=True)
    assert sum(received) > 100
