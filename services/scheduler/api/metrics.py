"""The metrics of the scheduler's GET /metrics: the ledger, the last batch, the fleet, switches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from earl.obs.catalogue import Sample
from services.scheduler.files.endings import OUT_OF_MEMORY
from services.scheduler.scheduler import Scheduler
from services.scheduler.state.tickets import REPLAYED, EpisodeEnding, TicketState
from services.scheduler.status import MetricFigures, SchedulerStatus

# Metrics of the last committed batch, with their names in metrics.jsonl.
BATCH = {
    "earl_scheduler_batch_reward": "reward_mean",
    "earl_scheduler_batch_win_ratio": "win_rate",
    "earl_scheduler_batch_tokens": "tokens",
    "earl_scheduler_batch_loss": "loss",
    "earl_scheduler_tokens_per_second": "tokens_per_s",
    "earl_scheduler_recorded_episodes": "recorded_episodes",
    "earl_scheduler_teacher_weight_ratio": "teacher_weight",
}


def figures(scheduler: Scheduler) -> Iterator[Sample]:
    """The scheduler's samples; called on its own loop."""
    status, extra = scheduler.status(), scheduler.metric_figures()
    yield from _run(status)
    yield from _tickets(status)
    yield from _batch(status)
    yield from _fleet(status)
    yield from _extra(extra)
    yield from _switches(extra)


def _run(status: SchedulerStatus) -> Iterator[Sample]:
    yield Sample("earl_scheduler_phase", 1.0, {"phase": status.phase})
    yield Sample("earl_scheduler_done", float(status.done))
    yield Sample("earl_scheduler_step", float(status.step))
    yield Sample("earl_scheduler_policy_version", float(status.version))


def _tickets(status: SchedulerStatus) -> Iterator[Sample]:
    dropped = {name.partition(":")[2]: count for name, count in status.counts.items() if ":" in name}
    yield Sample("earl_scheduler_issued_tickets_total", float(status.issued))
    for state in TicketState:
        count = sum(dropped.values()) if state is TicketState.DROPPED else status.counts.get(state.value, 0)
        yield Sample("earl_scheduler_tickets", float(count), {"state": state.value})
    yield Sample("earl_scheduler_tickets", float(status.counts.get(REPLAYED, 0)), {"state": REPLAYED})
    for reason, count in dropped.items():
        yield Sample("earl_scheduler_dropped_tickets", float(count), {"reason": reason})
    for role, progress in status.progress.items():
        for state, count in asdict(progress).items():
            yield Sample("earl_scheduler_trajectories", float(count), {"role": role, "state": state})


def _batch(status: SchedulerStatus) -> Iterator[Sample]:
    latest = status.metrics
    for metric, name in BATCH.items():
        if name in latest:
            yield Sample(metric, latest[name])
    for statistic in ("mean", "max"):
        if (name := f"staleness_{statistic}") in latest:
            yield Sample("earl_scheduler_batch_staleness_versions", latest[name], {"statistic": statistic})
    for statistic, value in asdict(status.episode_tokens).items():
        yield Sample("earl_scheduler_episode_tokens", value, {"statistic": statistic})
    done = [(record, judgement) for record, judgement in status.judged if record.finished and record.done]
    if done:
        last, judgement = done[-1]
        yield Sample("earl_scheduler_evaluation_version", float(last.version))
        yield Sample("earl_scheduler_evaluation_reward", judgement.reward.value)
        yield Sample("earl_scheduler_evaluation_win_ratio", judgement.win_rate.value)


def _fleet(status: SchedulerStatus) -> Iterator[Sample]:
    stages = [view.worker.stage_name for view in status.worker_views]
    for stage, count in Counter(stages).items():
        yield Sample("earl_scheduler_workers", float(count), {"stage": stage})
    for stage, view in zip(stages, status.worker_views, strict=True):
        if view.report is not None:
            labels = {"worker": view.worker.name, "stage": stage}
            yield Sample("earl_scheduler_worker_silent_seconds", view.silent_s, labels)


def _extra(extra: MetricFigures) -> Iterator[Sample]:
    yield Sample("earl_scheduler_published_version", float(extra.published))
    yield Sample("earl_scheduler_since_commit_seconds", extra.since_commit_s)
    yield Sample("earl_scheduler_out_of_memory_episodes_total", float(extra.episodes[OUT_OF_MEMORY]))
    for ending in EpisodeEnding:
        count = float(extra.episodes[ending.value])
        yield Sample("earl_scheduler_episodes_total", count, {"ending": ending.value})
    yield Sample("earl_scheduler_failing_tickets", float(extra.failing_tickets))


def _switches(extra: MetricFigures) -> Iterator[Sample]:
    for switches in extra.switches:
        stage, parallelism = switches.stage, switches.running
        for degree, value in (parallelism.as_dict() if parallelism is not None else {}).items():
            yield Sample("earl_scheduler_parallelism", float(value), {"stage": stage, "degree": degree})
        yield Sample("earl_scheduler_switch_running", float(switches.switching), {"stage": stage})
        # From 0 on: an increase of what was never 0 is none.
        for outcome, count in switches.outcomes.items() if parallelism is not None else ():
            yield Sample("earl_scheduler_switches_total", float(count), {"stage": stage, "outcome": outcome})
        if switches.stalls is not None:
            yield Sample("earl_scheduler_switch_stall_seconds", switches.stalls, {"stage": stage})
