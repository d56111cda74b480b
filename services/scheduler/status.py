"""A run as operators see it, and the figures of metrics alone, read from what the scheduler works with."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from earl.config.paced_check import paced_text
from earl.obs.histogram import Histogram
from earl.parallelism import NUMBERED_STAGES, STAGES, Parallelism
from services.scheduler.batches import consumers
from services.scheduler.batches.columns import ColumnProgress
from services.scheduler.files.metrics_files import OUTCOMES
from services.scheduler.ledger import phases
from services.scheduler.ledger.evaluation import Judgement, best_version
from services.scheduler.loop import RunLoop
from services.scheduler.monitor.length_sketch import Quantiles
from services.scheduler.monitor.step_clock import Doing
from services.scheduler.monitor.workers import WorkerReport
from services.scheduler.selector.stage_policies import SelectorVerdict
from services.scheduler.state.device_move import DeviceMove
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.switch_records import StageRecord
from services.scheduler.state.workers import WorkerRecord


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker that takes part. report: its last one, silent_s old; None before the first."""

    worker: WorkerRecord
    report: WorkerReport | None
    silent_s: float


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage that has workers. running: None while they differ; verdict: the selector's last."""

    name: str
    running: Parallelism | None
    record: StageRecord
    verdict: SelectorVerdict | None


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """counts: tickets by bucket, of `issued`. judged: evaluations in the order of the run, with figures.

    step, steps: batches done and planned in this phase, or episodes of an evaluation. metrics: of the last
    committed batch, with an estimate of the seconds that the phase will still take, phase_left_s, and the
    figures of `step_figures`. done: no more is handed out, for the run is complete or stops. progress: by
    stage, of its work on the trajectories that are there.
    """

    run: str
    phase: str
    step: int
    steps: int
    version: int
    counts: Mapping[str, int]
    issued: int
    worker_views: Sequence[WorkerView]
    judged: Sequence[tuple[EvaluationRecord, Judgement]]
    best_version: int
    episode_tokens: Quantiles
    turn_tokens: Quantiles
    metrics: Mapping[str, float]
    elapsed_s: float
    done: bool
    message: str
    progress: Mapping[str, ColumnProgress]
    stage_views: Sequence[StageView]
    heartbeat_s: float
    # The stage whose turn it is on shared devices; "" where stages take no turns.
    devices: str = ""
    # That the run's times are simulated, and by what; "" where devices are real.
    paced: str = ""
    # The last move of devices between stages, in progress or ended.
    move: DeviceMove | None = None


@dataclass(frozen=True, slots=True)
class StageSwitches:
    """The switches of a stage, which may have no workers. running: None while they differ.

    outcomes: number of switches that ended in this process, by outcome. stalls: seconds for which the stage
    stood still in each of them; None before the first one ended.
    """

    stage: str
    running: Parallelism | None
    switching: bool
    outcomes: Mapping[str, int]
    stalls: Histogram | None


@dataclass(frozen=True, slots=True)
class MetricFigures:
    """The figures that only metrics show.

    published: the newest version that engines can load. since_commit_s: since the last committed batch, or
    since this process took the run over. episodes: that ended in this process, by ending. failing_tickets:
    that failed for good in a row.
    """

    published: int
    since_commit_s: float
    episodes: Counter[str]
    failing_tickets: int
    switches: Sequence[StageSwitches]


def status_of(loop: RunLoop) -> SchedulerStatus:
    """The status now."""
    ledger, tables, lengths = loop.ledger, loop.ledger.tables, loop.recorder.monitor.lengths
    phase, (step, steps) = phases.phase(ledger), phases.step(ledger)
    elapsed_s = loop.elapsed_s
    left_s = loop.recorder.report.remaining.seconds(phase, step, steps, elapsed_s)
    return SchedulerStatus(
        run=loop.config.name,
        phase=phase,
        step=step,
        steps=steps,
        version=tables.run.version,
        counts=tables.counts(),
        issued=tables.run.next_ticket - 1,
        worker_views=_workers(loop),
        judged=loop.recorder.report.judgements.judged(tables.evaluations.values()),
        best_version=best_version(tables.evaluations.values()),
        episode_tokens=lengths.episodes.summary(),
        turn_tokens=lengths.turns.summary(),
        metrics=loop.recorder.report.latest
        | ({} if left_s is None else {"phase_left_s": left_s})
        | step_figures(loop, elapsed_s)
        | loop.recorder.monitor.counters.totals,
        elapsed_s=elapsed_s,
        done=loop.stopping,
        message=loop.message,
        progress=consumers.progress(loop.columns, ledger),
        stage_views=_stages(loop),
        heartbeat_s=ledger.membership.heartbeat_s,
        devices=loop.turns.turns.holder,
        paced=paced_text(loop.config),
        move=loop.ledger.tables.run.move,
    )


def step_figures(loop: RunLoop, elapsed_s: float) -> dict[str, float]:
    """The progress of the step that runs, or an evaluation that the trainer waits for; empty without.

    step_spent_s, step_left_s: seconds of its present part, which is to play the step's episodes, to train on
    them, or to evaluate; the estimate may be missing. step_played, step_episodes: episodes of the step.
    step_trained: the part of its training that is done, 0..1, where the trainer told.
    """
    work, clock = phases.work(loop.ledger), loop.step_clock
    clock.observe(work, elapsed_s)
    if work is None:
        return {}
    figures = {"step_spent_s": clock.spent_s(elapsed_s)}
    fraction = 0.0
    if work.doing is Doing.EVALUATING:
        fraction = phases.episodes_evaluated(loop.ledger) / work.episodes
    else:
        playing = work.doing is Doing.PLAYING
        count = phases.episodes_played(loop.ledger) if playing else work.episodes
        figures |= {"step_played": float(count), "step_episodes": float(work.episodes)}
        trained = None if playing else _trained(loop, figures["step_spent_s"])
        fraction = count / work.episodes if playing else trained or 0.0
        if trained is not None:
            figures["step_trained"] = trained
    left_s = clock.left_s(fraction, elapsed_s)
    return figures if left_s is None else figures | {"step_left_s": left_s}


def _trained(loop: RunLoop, spent_s: float) -> float | None:
    """The part of its batch that the trainer has trained, as it says, 0..1.

    None before its first heartbeat since the batch was planned, or since the trainer was started again.
    """
    tables = loop.ledger.tables
    report, worker = (
        loop.recorder.fleet.reports.get(tables.run.trainer),
        tables.workers.get(tables.run.trainer),
    )
    if report is None or worker is None or report.incarnation != worker.incarnation:
        return None
    if report.train_fraction is None or time.monotonic() - report.received_s >= spent_s:
        return None
    return min(1.0, max(0.0, report.train_fraction))


def metric_figures_of(loop: RunLoop) -> MetricFigures:
    """The figures of metrics alone, now."""
    return MetricFigures(
        published=loop.ledger.tables.run.published,
        since_commit_s=max(0.0, loop.elapsed_s - (loop.recorder.report.last_step_s or loop.opened_s)),
        episodes=loop.recorder.endings.totals,
        failing_tickets=loop.ledger.attempts.given_up,
        switches=_switches(loop),
    )


def _workers(loop: RunLoop) -> list[WorkerView]:
    """The workers, sorted by name."""
    now = time.monotonic()
    views = []
    for name, worker in sorted(loop.ledger.tables.workers.items()):
        report = loop.recorder.fleet.reports.get(name)
        if report is None or report.incarnation != worker.incarnation:
            report = None
        views.append(WorkerView(worker, report, now - report.received_s if report is not None else 0.0))
    return views


def _stages(loop: RunLoop) -> list[StageView]:
    switching, verdicts = loop.parallelism.switching, loop.parallelism.selector.last
    return [
        StageView(name, switching.running(name), switching.stage(name), verdicts.get(name))
        for name in NUMBERED_STAGES
        if switching.devices(name)
    ]


def _switches(loop: RunLoop) -> list[StageSwitches]:
    """The switches of every stage that a run may have."""
    switching, report = loop.parallelism.switching, loop.recorder.report
    return [
        StageSwitches(
            stage,
            switching.running(stage),
            switching.stage(stage).switch is not None,
            {outcome: report.switches[stage, outcome] for outcome in OUTCOMES},
            report.stalls.get(stage),
        )
        for stage in STAGES
    ]
