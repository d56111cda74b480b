"""The selector's benchmark: what its traces promise, and what it writes."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.selector import cases, command, figures, generate, hard, judge
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


@pytest.mark.parametrize("kind", hard.KINDS)
def test_every_step_of_a_hard_trace_is_held_by_some_layout(kind):
    judged = cases.case(0, 0, kind)
    assert len(judged.steps) == len(judged.noisy) == generate.STEPS
    assert all(cost.fits for cost in judged.exact)
    longest, most = judged.table.bound
    for step in judged.steps:
        load = step.workload
        assert 0 < load.mean_tokens <= load.p95_tokens <= load.max_tokens <= longest
        assert load.concurrency <= most
    lengths = [step.workload.max_tokens for step in judged.steps]
    if kind in ("jumps", "first-jump", "pareto"):
        assert judged.jumps > 0 and max(lengths) > 2 * min(lengths)


def test_seeds_that_judge_were_not_tuned_on():
    assert not {*cases.TUNING_SEEDS} & {*cases.HELD_OUT_SEEDS}


def test_the_world_differs_from_the_profile_but_not_in_what_fits():
    judged = cases.case(1, 0, "growth")
    again = cases.case(1, 0, "growth")
    assert judged.noisy == again.noisy and judged.steps == again.steps
    assert [cost.fits for cost in judged.noisy] == [cost.fits for cost in judged.exact]
    least = (1 - cases.NOISE) * cases.DRIFT_LEAST * (1 - cases.STEP_NOISE)
    ratios = [
        exact.seconds[replica] / noisy.seconds[replica]
        for exact, noisy in zip(judged.exact, judged.noisy, strict=True)
        for replica in exact.seconds
    ]
    assert len({round(ratio, 3) for ratio in ratios}) > 50
    # A cell's error is interpolated; beyond the cells a fitted roofline may differ by a little more.
    assert 0.9 * least < min(ratios) < 0.95 and max(ratios) < 1.1 * 1.1 * (1 + cases.STEP_NOISE)


def test_a_world_that_differs_is_learned_and_each_policy_begins_anew():
    judged = cases.case(2, 0, "oscillation", 20)
    first = judge.judge(judged)
    assert set(first.totals["noisy"]) == set(judge.POLICIES)
    noisy = judge.judged(judged, judged.noisy, ("earl",), learns=True)["earl"]
    assert noisy == first.totals["noisy"]["earl"]
    assert min(totals.regret_vs_oracle for totals in first.totals["noisy"].values()) >= -1e-12


def test_it_runs_from_tables_to_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TUNING_SEEDS", (3,))
    for family, kind in (("friendly", "oscillation"), ("bursty", "jumps"), ("adversarial", "flips")):
        monkeypatch.setitem(cases.FAMILIES, family, (kind,))
    arguments = ["--tables", "1", "--steps", "8", "--tuning", "--json", "--results", str(tmp_path)]
    done = CliRunner().invoke(command.app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    (written,) = tmp_path.iterdir()
    assert json.loads(written.read_text(encoding="utf-8")) == result
    assert result["benchmark"] == "selector" and result["seeds"] == [3] and result["held_out"] is False
    assert result["rows"] == 1000 and 0 < result["decision_ms"] <= result["decision_ms_max"]
    assert result["oom_steps_steady"] == 0 and result["vs_safe_static"] > 0.5
    assert result["missed"] == figures.missed_goals(result)
    assert result["by_seed"]["3"]["regret"] == result["regret"]
    for family, kinds in cases.FAMILIES.items():
        assert set(result["families"][family]["noisy"]) == set(judge.POLICIES)
        assert set(result["families"][family]["kinds"]) == set(kinds)
        assert result["families"][family]["vs_safe_static"] > 0.5


def judged_case(kind: str, jumps: int = 0, **regrets: float) -> judge.JudgedCase:
    """EARL's regret in both worlds, and others by name; the rest have none."""
    own, oom = regrets.pop("earl", 0.0), int(regrets.pop("oom", 0))
    totals = {name: replay.Totals(0.0, 4, 0, 1.0, 1.0) for name in judge.POLICIES}
    totals["earl"] = replay.Totals(own, 1, oom, 1.0 + own, 1.0)
    for name, regret in regrets.items():
        totals[name.replace("_", "-")] = replay.Totals(regret, 0, 0, 1.0 + regret, 1.0)
    return judge.JudgedCase(0, kind, jumps, True, {"exact": totals, "noisy": totals})


def test_figures_and_the_goals_that_they_miss():
    kinds = [kind for family in cases.FAMILIES.values() for kind in family]
    good = [judged_case(kind, earl=0.01, best_static=0.02, safe_static=0.05) for kind in kinds]
    shown = figures.headline(good) | {"decision_ms_max": 1.0}
    assert shown["vs_safe_static"] == pytest.approx(1.05 / 1.01, abs=1e-4)
    assert (shown["regret"], shown["regret_best_static"], shown["switches_vs_paper"]) == (
        0.01,
        0.02,
        0.25,
    )
    assert figures.missed_goals(shown) == []
    bad = [
        *good,
        judged_case("growth", earl=0.2, oom=1, best_static=0.0),
        judged_case("flips", jumps=2, earl=0.3, oom=3),
        judged_case("flips", jumps=2, oom=2),
    ]
    shown = figures.headline(bad) | {"decision_ms_max": 11.0}
    assert shown["oom_steps_steady"] == 1 and shown["oom_steps_beyond_jumps"] == 2
    assert shown["slower_than_safe_static_adversarial"] == pytest.approx(0.3)
    assert set(figures.missed_goals(shown)) == {
        "regret", "regret_beyond_best_static", "regret_max", "regret_noisy", "oom_steps_steady",
        "oom_steps_beyond_jumps", "slower_than_safe_static_adversarial", "decision_ms_max",
    }  # fmt: skip
