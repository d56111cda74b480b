"""The assignment's benchmark: traces, the fleet's clock, admission, and that nothing is lost."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.assign import cases, command, judge, policies, traces
from benchmarks.assign.policies import (
    CREDIT,
    HISTORY,
    LONGEST,
    ORACLE,
    POLICIES,
    Credit,
    Longest,
    Planned,
    RoundRobin,
)
from benchmarks.assign.simulate import SimulatedFleet
from benchmarks.assign.traces import LengthTrace, SequenceBatch
from benchmarks.assign.versions import Versions
from services.scheduler.assign.cost import DecodeCost
from services.scheduler.assign.history import LengthHistory, LengthPrediction
from services.scheduler.assign.plan import EngineKind

COST = DecodeCost(step_s=5e-3, sequence_s=4e-5, context_s=4e-8, prompt_s=4e-5)


def batch_of(*responses: int, prompt: int = 100, first_task: int = 0) -> SequenceBatch:
    count = len(responses)
    return SequenceBatch(
        np.zeros(count, int),
        np.arange(first_task, first_task + count),
        np.full(count, prompt),
        np.asarray(responses),
    )


def small_trace(seed: int = 0, rank_change: float = 0.03) -> LengthTrace:
    return traces.generated(
        seed, epochs=3, steps=2, batch_groups=24, group_size=4, rank_change=rank_change, growth=1.1
    )


@pytest.mark.parametrize("rank_change", [0.05, 0.2])
def test_ranks_change_between_epochs_by_as_much_as_is_asked_for(rank_change):
    trace = traces.generated(
        3, epochs=3, steps=2, batch_groups=256, group_size=16, rank_change=rank_change, growth=1.05
    )
    assert trace.rank_change == pytest.approx(rank_change, rel=0.05)


def test_an_epoch_plays_each_task_once_and_a_seed_makes_the_same_again():
    trace, again = small_trace(), small_trace()
    for epoch, other in zip(trace.epochs, again.epochs, strict=True):
        tasks = np.concatenate([batch.task for batch in epoch])
        assert sorted(tasks.tolist()) == sorted(list(range(48)) * 4)
        for batch, twin in zip(epoch, other, strict=True):
            assert (batch.responses == twin.responses).all()
            assert (batch.responses >= 1).all() and (batch.responses <= traces.MOST_TOKENS).all()
            assert (batch.task.reshape(-1, 4) == batch.task[::4, None]).all()


def test_seeds_that_are_reported_were_not_tuned_on():
    assert not {*cases.TUNING_SEEDS} & {*cases.REPORTED_SEEDS}


def fleet_of(batches, engines: int = 3, slots: int = 2, group: int = 1, staleness: int = 0) -> SimulatedFleet:
    return SimulatedFleet([EngineKind(COST, slots)], np.zeros(engines, int), batches, group, staleness)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=6))
def test_an_engine_takes_what_its_cost_says(responses):
    """All begin at once: the steps of the longest, and what each adds."""
    times = fleet_of([batch_of(*responses)], engines=1, slots=6).run(Credit())
    expected = COST.step_s * max(responses) + sum(
        float(COST.added_s(100.0, float(each))) for each in responses
    )
    assert times.seconds == pytest.approx(expected, rel=1e-6)
    assert times.idle_s == pytest.approx(0, abs=1e-6)


def test_an_engine_without_a_sequence_is_idle_until_the_last_ends():
    fleet = fleet_of([batch_of(100, 2000, 100)], engines=3)
    times = fleet.run(RoundRobin(fleet))
    short_s, long_s = (float(COST.alone_s(100.0, each)) for each in (100.0, 2000.0))
    assert times.seconds == pytest.approx(long_s, rel=1e-6)
    assert times.idle_s == pytest.approx(2 * (long_s - short_s), rel=1e-6)


def test_a_moved_sequence_keeps_its_tokens_and_its_context_is_computed_again():
    fleet = fleet_of([batch_of(1000, 1000)], engines=2)
    policy = Credit()

    def poll(fleet: SimulatedFleet) -> None:
        if not fleet.engines[1].running:
            fleet.move(1, 1, policy)

    policy.poll = poll
    times = fleet.run(policy)
    assert times.moved == 1
    alone_s = float(COST.alone_s(100.0, 1000.0))
    # Five seconds together, the rest apart, and at most what the whole context takes to compute.
    assert alone_s < times.seconds < alone_s + 5.0 * 0.05 + COST.prompt_s * 1100 + 0.05


def test_credit_leases_the_oldest_sequences_as_many_as_there_are_slots():
    fleet = fleet_of([batch_of(*range(100, 110))], engines=3, slots=4)
    policy = Credit()
    fleet.run(policy)
    leased = fleet_of([batch_of(*range(100, 110))], engines=3, slots=4)
    leased._release(Credit())
    assert [len(state.running) for state in leased.engines] == [4, 4, 2]


def test_longest_leases_of_the_oldest_batch_the_groups_first_that_are_predicted_to_be_longest():
    groups_of_two = [batch_of(*range(6)), batch_of(*range(6), first_task=6)]
    fleet = fleet_of(groups_of_two, engines=1, group=2)
    lengths = {0: 30.0, 2: 10.0, 4: 20.0, 6: 80.0, 8: 90.0, 10: 80.0}

    class Known(LengthHistory):
        def predict(self, environment: str, task: int, prompt_tokens: int) -> LengthPrediction:
            return LengthPrediction(lengths[task], 1.0)

    policy = Longest(fleet, Known())
    for first in (0, 6):
        policy.released(fleet, range(first, first + 6))
    assert list(policy.take(0, 13)) == [0, 1, 4, 5, 2, 3, 8, 9, 6, 7, 10, 11]


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize("name", POLICIES)
def test_every_sequence_is_played_once_in_batches_as_stale_as_allowed(name, staleness):
    trace = small_trace()
    batches = [batch for epoch in trace.epochs[1:] for batch in epoch]
    fleet = SimulatedFleet([EngineKind(COST, 3)], np.zeros(6, int), batches, trace.group_size, staleness)
    history = judge.recorded_history(trace)
    policy = {
        policies.ROUND_ROBIN: lambda: RoundRobin(fleet),
        CREDIT: Credit,
        LONGEST: lambda: Longest(fleet, history),
        policies.PLANNED: lambda: policies.LeasedAsPlanned(fleet, history),
        HISTORY: lambda: Planned(fleet, history),
        ORACLE: lambda: Planned(fleet, None),
    }[name]()
    ended: list[int] = []
    policy.ended = ended.append
    times = fleet.run(policy)
    assert sorted(ended) == list(range(sum(len(batch.task) for batch in batches)))
    assert 0 <= times.idle_s <= times.empty_s <= times.seconds * times.engines
    tokens = sum(int(batch.responses.sum()) for batch in batches)
    assert times.seconds >= COST.step_s * tokens / (6 * 3)


@given(st.integers(0, 3), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_versions_issue_no_group_too_early_and_train_none_too_stale(staleness, draw):
    versions = Versions(4, 1, staleness)
    begun: dict[int, int] = {}
    waiting: list[int] = []
    running: list[int] = []
    issued = 0
    while versions.version <= 6:
        while issued < versions.released:
            waiting += range(4 * issued, 4 * issued + 4)
            versions.issue()
            issued += 1
        assert issued * 4 - 4 * (versions.version - 1) <= 4 * (staleness + 1)
        if waiting and (not running or draw.random() < 0.5):
            group = waiting.pop(draw.randrange(len(waiting)))
            begun[group] = versions.version
            versions.begun(group)
            running.append(group)
        else:
            group = running.pop(draw.randrange(len(running)))
            versions.ended(group)
        before = set(versions.outstanding)
        while versions.train():
            trained = before - set(versions.outstanding)
            assert len(trained) == 4
            assert all(versions.version - 1 - begun[group] <= staleness for group in trained)
            before = set(versions.outstanding)


def test_it_runs_from_traces_to_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "TUNING_SEEDS", (3,))
    monkeypatch.setattr(cases, "STEPS", 1)
    arguments = ["--tuning", "--cases", "paper,wide-engines", "--devices", "32", "--json"]
    done = CliRunner().invoke(command.app, [*arguments, "--results", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    (written,) = tmp_path.iterdir()
    assert json.loads(written.read_text(encoding="utf-8")) == result
    assert result["benchmark"] == "assign" and result["seeds"] == [3] and result["held_out"] is False
    assert set(result["cases"]) == {"paper", "wide-engines"}
    assert result["bubble_reduction"] == result["cases"]["paper"]["bubble_reduction"]
    assert result["bubble_reduction_reshuffled"] is None
    assert 0 < result["plan_ms"] <= result["plan_ms_max"]
    for figures in result["cases"].values():
        assert set(figures["policies"]) == set(POLICIES)
        assert figures["vs_oracle"] <= figures["vs_oracle_max"]
        assert math.isclose(figures["rank_change"], 0.03, abs_tol=0.02)
    assert CliRunner().invoke(command.app, ["--cases", "none", "--results", str(tmp_path)]).exit_code == 2
