"""Checks the run as the selector sees it: each step its own, the past only where it should count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.parallelism import Parallelism
from services.scheduler.monitor.length_sketch import Quantiles
from services.scheduler.monitor.workers import stage_parallelism
from services.scheduler.monitor.workload import (
    DoneWork,
    KvUse,
    LengthMonitor,
    Level,
    Levels,
    Monitor,
    StepFigures,
    growth,
)
from services.scheduler.selector.decision import Workload
from services.scheduler.state.workers import WorkerRecord

ROLLOUT = WorkerRecord(name="r0", incarnation=1, stage=1, parallelism=(2, 1, 1, 1))
REFERENCE = WorkerRecord(name="ref", incarnation=1, stage=2, parallelism=(1, 2, 1, 1))
TRAINER = WorkerRecord(name="t", incarnation=1, stage=3, parallelism=(4, 1, 1, 1))


def committed(monitor: Monitor, now_s: float, *members: WorkerRecord, **given) -> StepFigures:
    fields = {
        "device_slots": 16,
        "batch_tokens": [10, 20, 30, 40],
        "trainer": {"train_tokens_per_s": 400.0},
        **given,
    }
    return monitor.step(workers=members or (ROLLOUT, TRAINER), now_s=now_s, **fields)


def test_the_past_fades() -> None:
    monitor = LengthMonitor()
    for _ in range(100):
        monitor.observe(10, [5, 5])
    for _ in range(12):
        monitor.step()
        for _ in range(10):
            monitor.observe(1000, [500, 500])
    assert monitor.episodes.summary().p50 > 900
    assert monitor.turns.summary().mean > 400
    for _ in range(60):
        monitor.step()
    assert monitor.episodes.summary() == Quantiles()


# --- concurrency ----------------------------------------------------------------------------


def test_concurrency_is_the_mean_while_there_was_any_and_the_most() -> None:
    level = Level()
    level.set(4, 10.0)
    level.set(8, 12.0)
    level.set(0, 14.0)
    assert level.take(100.0) == Levels(6.0, 8.0, 4.0)
    # What goes on counts in both steps; idle time in neither.
    level.set(2, 101.0)
    assert level.take(102.0) == Levels(2.0, 2.0, 1.0)
    assert level.take(103.0) == Levels(2.0, 2.0, 1.0)
    level.set(0, 103.0)
    level.take(104.0)
    assert level.take(105.0) == Levels(0.0, 0.0, 0.0)


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.01, 10)), min_size=1, max_size=30))
def test_the_mean_lies_between_what_it_was(changes: list[tuple[int, float]]) -> None:
    level, now_s = Level(), 0.0
    for value, seconds in changes:
        level.set(value, now_s)
        now_s += seconds
    taken, above = level.take(now_s), [value for value, _ in changes if value]
    assert taken.most == max(value for value, _ in changes)
    assert taken.seconds == pytest.approx(sum(seconds for value, seconds in changes if value))
    if above:
        assert min(above) - 1e-9 <= taken.mean <= max(above) + 1e-9


# --- a step ---------------------------------------------------------------------------------


def test_a_step_is_what_was_played_in_it() -> None:
    monitor = Monitor()
    monitor.playing(8, 0.0)
    for tokens in (100, 200, 301):
        monitor.observe(tokens, [tokens])
    monitor.playing(0, 2.0)
    step = committed(monitor, 5.0)
    assert step.running == {"rollout": Parallelism(2), "trainer": Parallelism(4)}
    seen = step.stages["rollout"]
    assert seen.workload.mean_tokens == pytest.approx(601 / 3)
    assert (seen.workload.max_tokens, seen.workload.concurrency, seen.concurrency_most) == (301, 8.0, 8.0)
    assert seen.workload.mean_tokens <= seen.workload.p95_tokens <= seen.workload.max_tokens
    # 601 tokens in the 2 s that something ran, on 2 devices.
    assert seen.tokens_per_device_s == pytest.approx(601 / 2 / 2)
    # The next one is its own: nothing of the first is in it.
    monitor.playing(4, 6.0)
    monitor.observe(50, [50])
    seen = committed(monitor, 7.0, batch_tokens=[10, 20]).stages["rollout"]
    assert (seen.workload.mean_tokens, seen.workload.max_tokens, seen.workload.concurrency) == (50, 50, 4.0)


def test_a_step_in_which_hardly_anything_ended_goes_by_what_was_played_of_late() -> None:
    monitor = Monitor()
    monitor.playing(6, 0.0)
    for _ in range(4):
        monitor.observe(100, [100])
    monitor.playing(0, 1.0)
    committed(monitor, 1.0)
    seen = committed(monitor, 2.0).stages["rollout"]
    assert (seen.workload.mean_tokens, seen.workload.concurrency) == (100, 6.0)
    assert seen.tokens_per_device_s is None
    # One of four is not what the step was like, nor how fast: it counts beside half of a half of four.
    monitor.playing(6, 2.5)
    monitor.observe(1000, [1000])
    seen = committed(monitor, 3.0).stages["rollout"]
    assert seen.workload.mean_tokens == pytest.approx(550) and seen.tokens_per_device_s is None
    # A monitor that begins in mid-run has the batch; before anything was played there is nothing to say.
    assert committed(Monitor(), 1.0).stages["rollout"].workload == Workload(25.0, 40.0, 40.0, 1.0)
    assert committed(Monitor(), 1.0, batch_tokens=[]).stages == {}


def test_what_waits_for_a_slot_is_not_in_the_pool() -> None:
    monitor = Monitor()
    monitor.playing(100, 0.0)
    monitor.observe(10, [10])
    seen = committed(monitor, 1.0, device_slots=16).stages["rollout"]
    assert (seen.workload.concurrency, seen.concurrency_most) == (32.0, 32.0)


def test_the_trainers_step_is_the_batch() -> None:
    monitor = Monitor()
    monitor.reported("reference", "ref", {"tokens_per_s": 50.0, "memory_fraction": 0.25}, 1)
    step = committed(monitor, 1.0, TRAINER, REFERENCE)
    assert step.stages.keys() == {"trainer", "reference"}
    trainer, reference = step.stages["trainer"], step.stages["reference"]
    assert trainer.workload == reference.workload
    assert trainer.workload == Workload(25.0, 40.0, 40.0, 4.0)
    assert (trainer.tokens_per_device_s, reference.tokens_per_device_s) == (100.0, 25.0)
    assert (trainer.memory_fraction, reference.memory_fraction) == (None, 0.25)
    said = {"train_tokens_per_s": 80.0, "memory_fraction": 0.5}
    trainer = committed(monitor, 2.0, TRAINER, trainer=said).stages["trainer"]
    assert (trainer.tokens_per_device_s, trainer.memory_fraction) == (20.0, 0.5)


# --- KV and memory --------------------------------------------------------------------------


def kv(used: float, total: float = 100.0) -> dict[str, float]:
    return {"kv_used_tokens": used, "kv_committed_tokens": used + 5, "kv_tokens": total}


def test_the_reference_stages_step_is_what_it_reads_of_the_batch() -> None:
    monitor = Monitor()
    monitor.reported("reference", "ref", {"tokens_per_s": 200.0}, 1)
    members = (ROLLOUT, REFERENCE, TRAINER)
    every = committed(monitor, 1.0, *members).stages["reference"]
    assert every.workload == Workload(25.0, 40.0, 40.0, 4.0) and every.tokens_per_device_s == 100.0
    protected = committed(monitor, 2.0, *members, reference_tokens=[10, 30]).stages
    assert protected["reference"].workload == Workload(20.0, 30.0, 30.0, 2.0)
    assert protected["trainer"].workload == every.workload
    assert "reference" not in committed(monitor, 3.0, *members, reference_tokens=[]).stages


def test_kv_and_memory_are_the_highest_of_the_step() -> None:
    monitor = Monitor()
    monitor.observe(10, [10])
    for used, memory in ((10.0, 0.3), (80.0, 0.6), (20.0, 0.4)):
        monitor.reported("rollout", "r0", {**kv(used), "memory_fraction": memory}, 1)
        monitor.reported("rollout", "r1", {**kv(1.0), "memory_fraction": 0.2}, 1)
    second = WorkerRecord(name="r1", incarnation=1, stage=1, parallelism=(2, 1, 1, 1))
    seen = committed(monitor, 1.0, ROLLOUT, second).stages["rollout"]
    assert seen.kv == KvUse(81.0, 91.0, 200.0) and KvUse(81.0, 91.0, 200.0).used_fraction == 0.405
    assert seen.memory_fraction == 0.6
    # Then as it was heard last, and without a worker that has left from the step after on.
    seen = committed(monitor, 2.0, second).stages["rollout"]
    assert (seen.kv, seen.memory_fraction) == (KvUse(21.0, 31.0, 200.0), 0.4)
    seen = committed(monitor, 3.0, second).stages["rollout"]
    assert (seen.kv, seen.memory_fraction) == (KvUse(1.0, 6.0, 100.0), 0.2)


def test_a_stages_parallelism_is_that_of_its_workers_together() -> None:
    other = WorkerRecord(name="r1", incarnation=1, stage=1, parallelism=(1, 2, 1, 1))
    assert stage_parallelism([ROLLOUT, REFERENCE, TRAINER, other]) == {
        "reference": Parallelism(1, 2),
        "trainer": Parallelism(4),
    }
    assert stage_parallelism([ROLLOUT, WorkerRecord(name="r1", incarnation=1, stage=1)]) == {
        "rollout": Parallelism(3)
    }


# --- trend ----------------------------------------------------------------------------------


@given(st.floats(10, 1000), st.floats(-0.2, 0.2), st.integers(3, 16), st.data())
def test_growth_is_found_whatever_one_step_says(
    first: float, rate: float, steps: int, data: st.DataObject
) -> None:
    means = [first * (1 + rate) ** step for step in range(steps)]
    assert growth(means) == pytest.approx(rate, abs=1e-6)
    if steps >= 8:
        means[data.draw(st.integers(0, steps - 1))] *= data.draw(st.sampled_from([0.01, 100]))
        assert growth(means) == pytest.approx(rate, abs=1e-6)


def test_growth_of_nothing_is_none() -> None:
    assert growth([]) == growth([5.0]) == growth([5.0, 5.0]) == 0.0


def test_a_monitor_goes_on_with_the_growth_of_before() -> None:
    monitor = Monitor()
    for mean in (100.0, 110.0, 121.0):
        monitor.remember(mean)
    monitor.observe(133, [133])
    assert committed(monitor, 1.0).growth == pytest.approx(0.1, abs=0.01)


def test_rollouts_work_is_what_its_engines_generated_for() -> None:
    monitor = Monitor()
    monitor.playing(4, 0.0)
    for tokens in (100, 200):
        monitor.observe(tokens, [tokens], 0.25)
    # No engine tells yet: both devices count for as long as anything was played.
    assert committed(monitor, 8.0).stages["rollout"].done == DoneWork(0.5, 16.0, reported=False)
    # What a worker did before this scheduler knew it does not count, and one that begins again counts from 0.
    for busy_s in (50.0, 53.0):
        monitor.reported("rollout", "r0", {"busy_device_s": busy_s}, 1)
    monitor.observe(100, [100], 0.25)
    assert committed(monitor, 16.0).stages["rollout"].done == DoneWork(0.25, 3.0)
    monitor.reported("rollout", "r0", {"busy_device_s": 55.0}, 1)
    monitor.reported("rollout", "r0", {"busy_device_s": 2.0}, 2)
    assert committed(monitor, 24.0).stages["rollout"].done == DoneWork(0.0, 4.0)
    # Its third life has generated for longer than the second had when that was heard of last.
    monitor.reported("rollout", "r0", {"busy_device_s": 7.0}, 3)
    assert committed(monitor, 32.0).stages["rollout"].done == DoneWork(0.0, 7.0)


def test_device_seconds_are_counted_as_devices_come_and_go() -> None:
    monitor = Monitor()
    monitor.observe(100, [100], 0.25)
    monitor.reported("rollout", "r0", {"busy_device_s": 0.0}, 1)
    for devices, now_s in ((2, 0.0), (1, 6.0), (3, 7.0)):
        monitor.devices(devices, now_s)
    done = committed(monitor, 8.0).stages["rollout"].done
    assert done is not None and done.there_s == pytest.approx(2 * 6 + 1 + 3)
    done = committed(monitor, 10.0).stages["rollout"].done
    assert done is not None and done.there_s == pytest.approx(6.0)
