"""The selector's benchmark: what its traces promise, and what it writes."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.selector import command, generate
from services.scheduler.selector import replay
from services.scheduler.selector.candidate_scores import weigh


@pytest.mark.parametrize("kind", generate.KINDS)
@settings(max_examples=4)
@given(seed=st.integers(0, 10**6))
def test_traces_grow_by_a_quarter_at_most_and_something_always_fits(kind, seed):
    table = generate.table(random.Random(seed))
    steps = generate.trace(kind, table, random.Random(seed))
    assert len(steps) == generate.STEPS
    for before, after in pairwise(steps):
        for name in ("max_tokens", "concurrency"):
            grown = getattr(after.workload, name) / getattr(before.workload, name)
            assert grown <= generate.GROWTH * (1 + 1e-9)
    for step in steps:
        load = step.workload
        assert 0 < load.mean_tokens <= load.p95_tokens <= load.max_tokens
        assert any(one.fits for one in weigh(table, step.devices, load))


def test_a_seed_makes_the_same_again():
    made = [
        (table.rows, generate.trace("load", table, draw))
        for draw in (random.Random(7), random.Random(7))
        for table in [generate.table(draw)]
    ]
    assert made[0] == made[1]


def test_it_runs_from_tables_to_figures(tmp_path):
    arguments = ["--tables", "1", "--seed", "3", "--json", "--results", str(tmp_path)]
    done = CliRunner().invoke(command.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    (written,) = tmp_path.iterdir()
    assert json.loads(written.read_text(encoding="utf-8")) == result
    assert result["benchmark"] == "selector" and result["seed"] == 3 and result["rows"] == 1000
    assert 0 <= result["regret"] < 0.2 and result["oom_steps"] == 0 and result["switches_vs_paper"] >= 0
    assert 0 < result["decision_ms"] <= result["decision_ms_max"]
    assert set(result["policies"]) == {"earl", "earl-paper", "drift30", "static-best"}
    for figures in result["policies"].values():
        assert set(figures["by_kind"]) == set(generate.KINDS)


def test_figures_are_over_all_traces():
    def totals(regret: float, switches: int, oom: int = 0) -> replay.Totals:
        return replay.Totals(regret, switches, oom, 1.0 + regret, 1.0)

    found = command.figures({"growth": [totals(0.0, 1), totals(0.2, 2, 1)], "load": [totals(0.1, 4)]})
    assert found["regret"] == pytest.approx(0.1) and found["regret_max"] == 0.2
    assert (found["switches"], found["oom_steps"]) == (7, 1)
    assert found["by_kind"]["growth"] == {"regret": 0.1, "oom_steps": 1, "switches": 3}
