"""Sums of what workers count: over restarts, over workers that come and go, and of each step alone."""

from services.scheduler.monitor.worker_counters import WorkerCounters
from services.scheduler.monitor.workload import Monitor


def drafts(steps: float, tokens: float) -> dict[str, float]:
    return {"drafting_steps": steps, "drafting_tokens": tokens}


def test_workers_are_added_up_and_what_is_no_counter_is_left_out():
    counters = WorkerCounters()
    assert counters.totals == counters.take() == {}
    counters.reported("rollout-0", 1, {"running_episodes": 3.0})
    counters.reported("rollout-1", 1, {})
    assert counters.totals == counters.take() == {}
    counters.reported("rollout-0", 1, {"running_episodes": 3.0, **drafts(10.0, 12.0)})
    counters.reported("rollout-1", 1, drafts(1.0, 2.0) | {"drafts.task.drafted_tokens": 5.0})
    assert counters.totals == drafts(11.0, 14.0) | {"drafts.task.drafted_tokens": 5.0}
    assert counters.take() == counters.totals


def test_a_step_has_what_was_counted_since_the_step_before():
    counters = WorkerCounters()
    counters.reported("rollout-0", 1, {})
    counters.reported("rollout-0", 1, drafts(10.0, 12.0))
    counters.take()
    counters.reported("rollout-0", 1, drafts(10.0, 12.0))
    counters.reported("rollout-0", 1, drafts(14.0, 20.0))
    assert counters.take() == drafts(4.0, 8.0)
    assert counters.take() == {}
    assert counters.totals == drafts(14.0, 20.0)


def test_a_worker_that_begins_again_counts_from_0_and_takes_nothing_back():
    counters = WorkerCounters()
    counters.reported("rollout-0", 1, {})
    counters.reported("rollout-0", 1, drafts(10.0, 12.0))
    counters.take()
    # Before its engines have started, it has no counters at all.
    counters.reported("rollout-0", 2, {})
    # As many as the life before had, and more: all of them are new.
    counters.reported("rollout-0", 2, drafts(10.0, 14.0))
    assert counters.totals == drafts(20.0, 26.0)
    assert counters.take() == drafts(10.0, 14.0)
    counters.reported("rollout-0", 3, drafts(3.0, 3.0))
    assert counters.take() == drafts(3.0, 3.0)


def test_the_past_of_a_worker_that_is_new_here_is_of_no_step():
    counters = WorkerCounters()
    counters.reported("rollout-0", 1, drafts(100.0, 150.0))
    assert counters.totals == drafts(100.0, 150.0)
    assert counters.take() == {}
    counters.reported("rollout-0", 1, drafts(101.0, 152.0))
    assert counters.take() == drafts(1.0, 2.0)


def test_a_worker_that_leaves_and_comes_back_is_counted_once():
    monitor = Monitor()
    monitor.reported("rollout", "rollout-0", drafts(100.0, 150.0), 1)
    monitor.step(workers=(), device_slots=1, batch_tokens=[4], trainer={}, now_s=1.0)
    assert monitor.counters.totals == drafts(100.0, 150.0)
    monitor.reported("rollout", "rollout-0", drafts(110.0, 165.0), 1)
    assert monitor.counters.totals == drafts(110.0, 165.0)
