"""Traces, what a replayed step costs, and the oracle."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import ProfileTable
from services.scheduler.selector import replay, trace
from services.scheduler.selector.decision import Decision, Workload
from services.scheduler.selector.policies import NAMES, policy_of
from services.scheduler.selector.trace import COLUMNS, TraceStep

HEAD = ",".join(COLUMNS)
GOOD = "3,1000,1500,2000,32,8"
TP1, TP2 = Parallelism(4), Parallelism(2, 2)


# --- the CSV --------------------------------------------------------------------------------


def test_a_line_is_a_step():
    steps = [TraceStep(3, Workload(1000, 1500, 2000, 32), 8)]
    assert trace.parse(f"\ufeff{HEAD}\r\n\r\n{GOOD}\r\n,,,,,\r\n", "t.csv") == steps
    assert (
        trace.parse(
            "note,devices,step,concurrency,max_tokens,p95_tokens,mean_tokens\nx,8.0,3,32,2000,1500,1000", "t"
        )
        == steps
    )


@settings(max_examples=50)
@given(st.lists(st.tuples(*[st.floats(1e-6, 1e9)] * 4, st.integers(1, 4096)), min_size=1, max_size=5))
def test_steps_are_read_as_they_were_written(drawn):
    steps = [
        TraceStep(2 * at, Workload(mean, p95, mean + longest, load), devices)
        for at, (mean, p95, longest, load, devices) in enumerate(drawn)
    ]
    text = trace.dump(steps)
    again = trace.parse(text, "t.csv")
    assert trace.dump(again) == text
    assert [(one.step, one.devices) for one in again] == [(one.step, one.devices) for one in steps]


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        *((name, cell) for name in COLUMNS[1:5] for cell in ("", "0", "-1", "nan", "inf", "1e300", "many")),
        *(("step", cell) for cell in ("", "-1", "4.5", "nan", "1e300")),
        *(("devices", cell) for cell in ("", "0", "1.5", "inf")),
        ("max_tokens", "999"),
    ],
)
def test_a_bad_cell_is_named_with_its_line_and_a_remedy(column, cell):
    cells = dict(zip(COLUMNS, GOOD.split(","), strict=True)) | {column: cell}
    with pytest.raises(ConfigError) as error:
        trace.parse(f"{HEAD}\n1,1000,1500,2000,32,8\n\n{','.join(cells.values())}\n", "t.csv")
    assert error.value.message.startswith("t.csv, line 4: ") and column in error.value.message
    assert error.value.remedy


@pytest.mark.parametrize("missing", COLUMNS)
def test_a_missing_column_is_named(missing):
    head = ",".join(column for column in COLUMNS if column != missing)
    with pytest.raises(ConfigError, match=f"t.csv has no column '{missing}'.*{HEAD}"):
        trace.parse(f"{head}\n{GOOD}", "t.csv")


def test_steps_come_in_order_and_there_are_some_but_not_too_many(monkeypatch):
    with pytest.raises(ConfigError, match="line 3: step 3 comes after step 3; order the rows"):
        trace.parse(f"{HEAD}\n{GOOD}\n{GOOD}", "t.csv")
    with pytest.raises(ConfigError, match=r"^t.csv has no steps"):
        trace.parse(HEAD, "t.csv")
    monkeypatch.setattr(trace, "MOST_STEPS", 1)
    with pytest.raises(ConfigError, match="more than 1 lines"):
        trace.parse(f"{HEAD}\n{GOOD}\n4{GOOD[1:]}", "t.csv")


# --- what a step costs ----------------------------------------------------------------------


def row(layout: Parallelism, context: float, load: float, rate: float | None) -> ProfileRow:
    return ProfileRow("rollout", layout, context, load, rate, None, rate is None)


@pytest.fixture
def small() -> ProfileTable:
    """tp 1 does 100 tokens a second and device, and ends at 2000 tokens; tp 2 does 80, whatever comes."""
    return ProfileTable(
        [row(TP1, 1000, 32, 100.0), row(TP1, 2000, 32, None), row(TP2, 1000, 32, 80.0)], "rollout"
    )


def step(at: int, mean: float, longest: float, load: float = 32, devices: int = 4) -> TraceStep:
    return TraceStep(at, Workload(mean, longest, longest, load), devices)


class Fixed:
    """A policy that goes where it is told."""

    name = "fixed"

    def __init__(self, *path: Parallelism) -> None:
        self.path, self.before = list(path), None
        self.seen: list[Workload] = []

    def decide(self, step: int, devices: int) -> Decision:
        assert len(self.seen) == step, "it has seen the rows before, and no other"
        before, self.before = self.before, self.path[step]
        return Decision(step, before, self.path[step], "told so")

    def observe(self, workload: Workload) -> None:
        self.seen.append(workload)


def test_a_step_lasts_its_tokens_over_the_rate_of_all_devices(small):
    steps = [step(0, 1000, 1500), step(1, 500, 1000)]
    taken = list(replay.run(Fixed(TP1, TP2), steps, replay.costs_of(small, steps), 7.0))
    assert [one.seconds for one in taken] == pytest.approx([32 * 1000 / (100 * 4), 32 * 500 / (80 * 4) + 7.0])
    assert not any(one.oom for one in taken)


def test_a_step_out_of_memory_is_lost_and_runs_again_between_two_switches(small):
    steps = [step(0, 1000, 2000), step(1, 1000, 1000)]
    taken = list(replay.run(Fixed(TP1, TP1), steps, replay.costs_of(small, steps), 7.0))
    assert [one.oom for one in taken] == [True, False]
    assert taken[0].seconds == pytest.approx(80.0 + 2 * 7.0 + 100.0)
    totals = replay.totals(taken, replay.oracle(replay.costs_of(small, steps), 7.0)[1])
    assert (totals.switches, totals.oom_steps) == (0, 1)
    assert totals.seconds == pytest.approx(274.0) and totals.oracle_seconds == pytest.approx(187.0)
    assert totals.regret_vs_oracle == pytest.approx(274 / 187 - 1)


def test_where_nothing_fits_a_step_is_out_of_memory_and_lasts_its_time():
    table = ProfileTable([row(TP1, 1000, 32, 100.0), row(TP1, 2000, 32, None)], "rollout")
    steps = [step(0, 1000, 3000)]
    (taken,) = replay.run(Fixed(TP1), steps, replay.costs_of(table, steps), 7.0)
    assert taken.oom and taken.seconds == pytest.approx(80.0)
    assert replay.oracle(replay.costs_of(table, steps), 7.0) == ([TP1.replica], pytest.approx(80.0))


def test_what_has_no_layout_or_no_throughput_is_refused(small):
    with pytest.raises(ConfigError, match="step 0: 4 devices do not make dp2·tp4"):
        steps = [step(0, 1000, 1000)]
        list(replay.run(Fixed(Parallelism(2, 4)), steps, replay.costs_of(small, steps), 1.0))
    blind = ProfileTable([row(TP1, 1000, 32, None)], "rollout")
    with pytest.raises(ConfigError, match="no throughput of any layout of 4 devices"):
        replay.costs_of(blind, [step(0, 1000, 1000)])


def test_devices_that_come_and_go(small):
    steps = [step(0, 1000, 1000, devices=4), step(1, 1000, 1000, devices=8), step(2, 1000, 1000, devices=3)]
    costs = replay.costs_of(small, steps)
    taken = list(replay.run(policy_of("static:tp=1", small, 1.0), steps, costs, 1.0))
    assert [str(one.decision.after) for one in taken] == ["dp4", "dp8", "dp3"]
    assert not any(one.decision.switched for one in taken)
    path, seconds = replay.oracle(costs, 1.0)
    assert path == [TP1.replica] * 3 and seconds == pytest.approx(sum(one.seconds for one in taken))
    for name in NAMES[:-1]:
        assert [
            one.decision.after.devices for one in replay.run(policy_of(name, small, 1.0), steps, costs, 1.0)
        ] == [4, 8, 3]
    with pytest.raises(ConfigError, match="static:tp=2: the profile has no tp2 for 3 devices; it has dp3"):
        list(replay.run(policy_of("static:tp=2", small, 1.0), steps, costs, 1.0))


# --- the oracle -----------------------------------------------------------------------------


def drawn_table(draw: random.Random, layouts: int = 3) -> ProfileTable:
    """Any numbers, with holes and with what does not fit."""
    rows = []
    for tp in (1, 2, 4)[:layouts]:
        rows.append(row(Parallelism(4 // tp, tp), 100, 1, draw.uniform(10, 100)))
        for _ in range(draw.randint(0, 5)):
            rate = draw.uniform(10, 100) if draw.random() < 0.7 else None
            rows.append(
                row(Parallelism(4 // tp, tp), draw.choice([200, 800, 3200]), draw.choice([4, 16]), rate)
            )
    return ProfileTable(rows, "rollout")


def drawn_steps(draw: random.Random, count: int, devices: tuple[int, ...] = (4,)) -> list[TraceStep]:
    longest = [draw.uniform(100, 6000) for _ in range(count)]
    return [
        step(at, long / draw.uniform(1, 3), long, draw.randint(1, 24), draw.choice(devices))
        for at, long in enumerate(longest)
    ]


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from((0.0, 1.0, 100.0, 1e4)), st.sampled_from(((4,), (1, 2, 4))))
def test_the_oracle_is_the_cheapest_of_all_sequences(seed, cost_s, devices):
    draw = random.Random(seed)
    table, steps = drawn_table(draw), drawn_steps(draw, 5, devices)
    costs = [replay.cost(table, one.devices, one.workload) for one in steps]

    def seconds(path) -> float:
        switches = sum(a != b for a, b in itertools.pairwise(path))
        return switches * cost_s + sum(one.seconds[replica] for one, replica in zip(costs, path, strict=True))

    ways = itertools.product(
        *[[one for one in cost.seconds if one in cost.fits or not cost.fits] for cost in costs]
    )
    path, oracle_s = replay.oracle(costs, cost_s)
    assert oracle_s == pytest.approx(min(map(seconds, ways)))
    assert oracle_s == pytest.approx(seconds(path))


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from((0.0, 10.0, 1e4)), st.sampled_from(NAMES[:-1]))
def test_no_policy_is_quicker_than_the_oracle(seed, cost_s, name):
    draw = random.Random(seed)
    table, steps = drawn_table(draw), drawn_steps(draw, 12, (1, 2, 4))
    costs = replay.costs_of(table, steps)
    taken = list(replay.run(policy_of(name, table, cost_s), steps, costs, cost_s))
    totals = replay.totals(taken, replay.oracle(costs, cost_s)[1])
    assert totals.regret_vs_oracle >= -1e-12
    for one, at in zip(taken, steps, strict=True):
        cost = replay.cost(table, at.devices, at.workload)
        assert one.oom == (one.decision.after.replica not in cost.fits)
        if not one.oom:
            assert one.seconds == pytest.approx(
                cost.seconds[one.decision.after.replica] + cost_s * one.decision.switched
            )
