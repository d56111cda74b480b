"""What GET /metrics of the scheduler shows: the ledger, the last batch, the fleet, switches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from earl.obs.catalogue import Sample
from services.scheduler.batches import consumers
from services.scheduler.files.endings import OUT_OF_MEMORY
from services.scheduler.files.metrics_files import OUTCOMES
from services.scheduler.ledger import phases
from services.scheduler.monitor.workers import STAGES
from services.scheduler.scheduler import Scheduler
from services.scheduler.state.records import EpisodeEnding, TicketState

# Of the last committed batch: the metric, and its name in metrics.jsonl.
BATCH = {
    "earl_scheduler_batch_reward": "reward_mean",
    "earl_scheduler_batch_win_ratio": "win_rate",
    "earl_scheduler_batch_tokens": "tokens",
    "earl_scheduler_batch_loss": "loss",
    "earl_scheduler_tokens_per_second": "tokens_per_s",
}


def figures(scheduler: Scheduler) -> Iterator[Sample]:
    """On the scheduler's own loop."""
    yield from _run(scheduler)
    yield from _tickets(scheduler)
    yield from _batch(scheduler)
    yield from _fleet(scheduler)
    yield from _switches(scheduler)


def _run(scheduler: Scheduler) -> Iterator[Sample]:
    run = scheduler.loop.ledger.tables.run
    since_s = scheduler.loop.elapsed_s - (scheduler.loop.report.last_step_s or scheduler.loop.opened_s)
    yield Sample("earl_scheduler_phase", 1.0, {"phase": phases.phase(scheduler.loop.ledger)})
    yield Sample("earl_scheduler_done", float(scheduler.loop.over))
    yield Sample("earl_scheduler_step", float(phases.step(scheduler.loop.ledger)[0]))
    yield Sample("earl_scheduler_policy_version", float(run.version))
    yield Sample("earl_scheduler_published_version", float(run.published))
    yield Sample("earl_scheduler_since_commit_seconds", max(0.0, since_s))


def _tickets(scheduler: Scheduler) -> Iterator[Sample]:
    counts = scheduler.loop.ledger.tables.counts()
    dropped = {name.partition(":")[2]: count for name, count in counts.items() if ":" in name}
    yield Sample(
        "earl_scheduler_issued_tickets_total", float(scheduler.loop.ledger.tables.run.next_ticket - 1)
    )
    for state in TicketState:
        count = sum(dropped.values()) if state is TicketState.DROPPED else counts.get(state.value, 0)
        yield Sample("earl_scheduler_tickets", float(count), {"state": state.value})
    for reason, count in dropped.items():
        yield Sample("earl_scheduler_dropped_tickets", float(count), {"reason": reason})
    endings = scheduler.loop.endings.totals
    yield Sample("earl_scheduler_out_of_memory_episodes_total", float(endings[OUT_OF_MEMORY]))
    for ending in EpisodeEnding:
        count = float(endings[ending.value])
        yield Sample("earl_scheduler_episodes_total", count, {"ending": ending.value})
    yield Sample("earl_scheduler_failing_tickets", float(scheduler.loop.ledger.given_up))
    for role, progress in consumers.progress(scheduler.loop.columns, scheduler.loop.ledger).items():
        for state in ("waiting", "leased", "done"):
            yield Sample(
                "earl_scheduler_trajectories",
                float(getattr(progress, state)),
                {"role": role, "state": state},
            )


def _batch(scheduler: Scheduler) -> Iterator[Sample]:
    latest = scheduler.loop.report.latest
    for metric, name in BATCH.items():
        if name in latest:
            yield Sample(metric, latest[name])
    for statistic in ("mean", "max"):
        if (name := f"staleness_{statistic}") in latest:
            yield Sample("earl_scheduler_batch_staleness_versions", latest[name], {"statistic": statistic})
    lengths = scheduler.loop.monitor.lengths.episodes.summary()
    for statistic in ("mean", "p50", "p95", "max"):
        value = getattr(lengths, statistic)
        yield Sample("earl_scheduler_episode_tokens", value, {"statistic": statistic})
    evaluations = scheduler.loop.report.judgements.judged(scheduler.loop.ledger.tables.evaluations.values())
    done = [(record, judgement) for record, judgement in evaluations if record.finished and record.done]
    if done:
        last, judgement = done[-1]
        yield Sample("earl_scheduler_evaluation_version", float(last.version))
        yield Sample("earl_scheduler_evaluation_reward", judgement.reward.value)
        yield Sample("earl_scheduler_evaluation_win_ratio", judgement.win_rate.value)


def _fleet(scheduler: Scheduler) -> Iterator[Sample]:
    now = time.monotonic()
    members = scheduler.loop.ledger.tables.members
    stages = Counter(STAGES.get(member.stage, "") for member in members.values())
    for stage, count in stages.items():
        yield Sample("earl_scheduler_workers", float(count), {"stage": stage})
    for name, member in members.items():
        report = scheduler.loop.fleet.reports.get(name)
        if report is not None and report.incarnation == member.incarnation:
            labels = {"worker": name, "stage": STAGES.get(member.stage, "")}
            yield Sample("earl_scheduler_worker_silent_seconds", now - report.seen_s, labels)


def _switches(scheduler: Scheduler) -> Iterator[Sample]:
    switching = scheduler.loop.parallelism.switching
    for stage in STAGES.values():
        parallelism = switching.running(stage)
        for degree, value in (parallelism.as_dict() if parallelism is not None else {}).items():
            yield Sample("earl_scheduler_parallelism", float(value), {"stage": stage, "degree": degree})
        running = switching.stage(stage).switch is not None
        yield Sample("earl_scheduler_switch_running", float(running), {"stage": stage})
        # From 0 on: an increase of what was never 0 is none.
        for outcome in OUTCOMES if parallelism is not None else ():
            count = float(scheduler.loop.report.switches[stage, outcome])
            yield Sample("earl_scheduler_switches_total", count, {"stage": stage, "outcome": outcome})
    for stage, stalls in scheduler.loop.report.stalls.items():
        yield Sample("earl_scheduler_switch_stall_seconds", stalls, {"stage": stage})
