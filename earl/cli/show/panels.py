"""A snapshot of a run as tables of text, for `earl status` and `earl top`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from earl.cli.lib.concerns import concerns, faults, quarantines, waits
from earl.cli.lib.figures import status_retention
from earl.cli.lib.gateway_codec import HostLatency
from earl.cli.lib.mixture_figures import by_environment, by_seat
from earl.cli.lib.snapshot import NOWHERE, RunSnapshot, RunState
from earl.cli.lib.status_table import StatusTable, numbers
from earl.cli.lib.status_text import (
    PHASES,
    clock,
    learning_figures,
    paced_line,
    progress_of,
    role_figures,
    shutdown_text,
    ticket_figures,
    time_left,
    transfer,
)
from earl.cli.lib.step_text import step_text
from earl.cli.lib.switches import UNEVEN, switch_text
from earl.cli.lib.ticket_words import PLAYING
from earl.stack.status import RunStatus, StageState, WorkerState

NONE = "–"
# Environments without a session that are listed by name.
MOST_IDLE = 3
# Style of the headline by the run's state.
STYLES = {
    RunState.STARTING: "yellow",
    RunState.RUNNING: "green",
    RunState.COMPLETE: "bold green",
    RunState.STOPPED: "yellow",
    RunState.FAILED: "bold red",
    RunState.LOST: "bold red",
}


def headline(snapshot: RunSnapshot) -> str:
    """The run in one line: name, state, progress."""
    status = snapshot.status
    parts = [f"{status.run}  {snapshot.state}"]
    if status.phase:
        done, total = progress_of(status)
        left = time_left(status) if snapshot.state is RunState.RUNNING else ""
        parts.append(
            f"{PHASES.get(status.phase, status.phase)} {done}/{total}{left}" if total else status.phase
        )
    if status.version:
        parts.append(f"version {status.version}")
    if snapshot.elapsed_s:
        parts.append(clock(snapshot.elapsed_s))
    if status.paced:
        parts.append(paced_line(status))
    return ", ".join(parts)


def step_line(snapshot: RunSnapshot) -> str:
    """A line of progress for the step that runs; "" unless the scheduler of a running run has just told."""
    known = snapshot.state is RunState.RUNNING and "scheduler" not in snapshot.silent
    return step_text(snapshot.status) if known else ""


def ending_line(snapshot: RunSnapshot) -> tuple[str, str]:
    """The reason why the run ended, or why it ends now, and the style of that line; ("", "") for neither.

    Green is for a run that did all it was to do, yellow for one that was stopped or reached its time limit,
    red for one that failed.
    """
    status = snapshot.status
    reason = snapshot.ending_reason or (shutdown_text(status) if snapshot.state.is_active else status.message)
    done = status.phase == "done"
    if not reason:
        return "", ""
    if snapshot.state in (RunState.FAILED, RunState.LOST):
        return reason, "red"
    if (done or snapshot.state is RunState.COMPLETE) and not (done and status.step < status.steps):
        return reason, "green"
    return reason, "yellow"


def problems(snapshot: RunSnapshot) -> Iterator[str]:
    """Problems of the run, a line each."""
    for name, reason in snapshot.silent.items():
        if snapshot.state is RunState.RUNNING or snapshot.directory == NOWHERE:
            yield f"{name} does not answer: {reason}"
    served = sorted(env.name for env in snapshot.environments if env.hosts)
    yield from concerns(snapshot.status.workers, served)
    yield from status_retention(snapshot.status)
    for env in snapshot.environments:
        yield from waits(env)
        yield from quarantines(env)
        yield from faults(env)
    if snapshot.state is RunState.LOST and snapshot.directory != NOWHERE:
        yield f"clean up what may be left with: earl stop {snapshot.directory}"


def tables(snapshot: RunSnapshot) -> Iterator[StatusTable]:
    """Every table that has rows."""
    for table in (
        learning(snapshot.status),
        mixture(snapshot.status),
        stages(snapshot.status),
        workers(snapshot.status),
        environments(snapshot),
        queues(snapshot),
        ledger(snapshot.status),
        leases(snapshot),
        switches(snapshot.status.stages),
        processes(snapshot),
        endpoints(snapshot),
    ):
        if table.rows:
            yield table


def stages(status: RunStatus) -> StatusTable:
    """Every stage: its parallelism, tokens/s and memory, and the selector's verdict."""
    rows = tuple(
        (
            stage.name,
            f"{stage.running or UNEVEN}{' (pinned)' if stage.pinned else ''}",
            tokens_per_s(status, stage.name),
            f"{memory:.0%}" if (memory := fullest(status, stage.name)) else NONE,
            stage.sentence or ("pinned" if stage.pinned else NONE),
        )
        for stage in status.stages
    )
    columns = ("stage", "parallelism", "tokens/s", "memory", "selector")
    return StatusTable(
        "stages",
        columns,
        rows,
        tuple(stage.name for stage in status.stages),
        numbers("tokens/s", "memory"),
        prose=frozenset({"selector"}),
        least=("memory", "tokens/s"),
    )


def tokens_per_s(status: RunStatus, stage: str) -> str:
    """Formats the tokens per second of a stage's workers together: generated, computed, or trained on."""
    if stage == "trainer":
        rate = status.metrics.get("train_tokens_per_s", 0.0)
    else:
        name = "generated_tokens_per_s" if stage == "rollout" else "tokens_per_s"
        rate = sum(worker.gauges.get(name, 0.0) for worker in status.workers if worker.stage == stage)
    return f"{rate:,.0f}" if rate else NONE


def fullest(status: RunStatus, stage: str) -> float:
    return max(
        (worker.gauges.get("memory_fraction", 0.0) for worker in status.workers if worker.stage == stage),
        default=0.0,
    )


def workers(status: RunStatus) -> StatusTable:
    columns = ("worker", "stage", "parallelism", "version", "busy", "KV used", "last seen", "read")
    rows = tuple(worker(state, late=status.is_late(state)) for state in status.workers)
    keys = tuple(state.name for state in status.workers)
    return StatusTable(
        "workers",
        columns,
        rows,
        keys,
        numbers("version", "busy", "KV used", "last seen"),
        least=("read", "KV used", "version", "stage", "parallelism"),
    )


def worker(state: WorkerState, *, late: bool) -> tuple[str, ...]:
    busy = f"{state.capacity} rank{'s' if state.capacity != 1 else ''}"
    if state.stage == "rollout":
        busy = f"{state.running}/{state.capacity}"
    if state.gauges.get("asleep"):
        busy += ", asleep"
    kv = f"{state.gauges['kv_used_fraction']:.0%}" if state.gauges.get("kv_tokens") else NONE
    last_seen = f"{state.silent_s:.0f} s ago{' (late)' if late else ''}"
    read = " · ".join(transfer(path, moved) for path, moved in state.transfers.items()) or NONE
    return state.name, state.stage, state.parallelism, str(state.version or NONE), busy, kv, last_seen, read


def ledger(status: RunStatus) -> StatusTable:
    """Every ticket by its state."""
    counts = status.ledger
    if not counts.issued:
        return StatusTable("tickets", (), ())
    columns, row, _ = zip(*ticket_figures(counts), strict=True)
    return StatusTable("tickets", columns, (row,), numbers=frozenset(columns))


def queues(snapshot: RunSnapshot) -> StatusTable:
    """Builds the table of queues: tickets, episodes for a host, sequences for an engine, trajectories for a
    stage.
    """
    status, counts = snapshot.status, snapshot.status.ledger
    rows: list[tuple[str, str, str]] = []
    if counts.issued:
        oldest = snapshot.leases[0] if snapshot.leases else None
        held = f", oldest {clock(oldest.age_s)} {oldest.worker}" if oldest is not None else ""
        rows.append(("tickets", f"{counts.pending:,}", f"{counts.leased:,} {PLAYING}{held}"))
    if snapshot.environments:
        opened = sum(environment.open for environment in snapshot.environments)
        capacity = sum(environment.capacity for environment in snapshot.environments)
        queued = sum(environment.queued for environment in snapshot.environments)
        rows.append(("sessions for a host", f"{queued:,}", f"{opened:,} of {capacity:,} open"))
    waiting = sum(worker.gauges.get("engine_waiting", 0.0) for worker in status.workers)
    running = sum(worker.gauges.get("engine_running", 0.0) for worker in status.workers)
    if any("engine_running" in worker.gauges for worker in status.workers):
        rows.append(("sequences for an engine", f"{waiting:,.0f}", f"{running:,.0f} running"))
    for role in status.roles:
        figures = ", ".join(f"{count:,} {word}" for word, count, _ in role_figures(role)[1:])
        rows.append((f"trajectories for the {role.name}", f"{role.waiting:,}", figures))
    columns = ("queue", "waiting", "in progress")
    return StatusTable(
        "queues", columns, tuple(rows), numbers=numbers("waiting"), prose=frozenset({"in progress"})
    )


def leases(snapshot: RunSnapshot) -> StatusTable:
    """The tickets that have been played for longest, and by which workers."""
    rows = tuple(
        (lease.worker, clock(lease.age_s), f"{lease.ticket:,}", str(lease.attempt), lease.purpose)
        for lease in snapshot.leases
    )
    columns = ("playing longest", "for", "ticket", "attempt", "purpose")
    return StatusTable(
        "playing", columns, rows, numbers=numbers("for", "ticket", "attempt"), least=("purpose", "attempt")
    )


def environments(snapshot: RunSnapshot) -> StatusTable:
    """Environments with sessions or faults first; of the others a few, and how many more there are."""
    columns = ("environment", "hosts", "open", "queued", "quarantined", "reset p50 / p99", "step p50 / p99")
    busy = [host for host in snapshot.environments if host.open or host.queued or host.quarantined]
    idle = [host for host in snapshot.environments if host not in busy]
    listed = idle if len(idle) <= MOST_IDLE else []
    rows = tuple(
        (
            environment.name,
            str(environment.hosts),
            f"{environment.open}/{environment.capacity}",
            str(environment.queued),
            str(environment.quarantined),
            latency(environment.reset),
            latency(environment.step),
        )
        for environment in (*busy, *listed)
    )
    if len(listed) < len(idle):
        rows = (*rows, (f"{'and ' if rows else ''}{len(idle)} idle", *(NONE for _ in columns[1:])))
    return StatusTable(
        "environments",
        columns,
        rows,
        numbers=frozenset(columns[1:]),
        least=("reset p50 / p99", "quarantined", "hosts", "step p50 / p99"),
    )


def latency(latency_s: HostLatency) -> str:
    """Two latencies as text, for example "0.4 / 2.1 ms"."""
    return f"{latency_s.p50_s * 1e3:.1f} / {latency_s.p99_s * 1e3:.1f} ms" if latency_s.count else NONE


# Metrics of the last step that have a column.
LEARNING = ("reward_mean", "win_rate", "loss", "entropy", "logprob_mismatch", "tokens_per_s")


def learning(status: RunStatus) -> StatusTable:
    """The last step's figures, in one row; staleness is of its trajectories, in versions. Of the recorded
    episodes that the warm-up imitates it has their number and mean reward."""
    metrics = status.metrics
    figures = [(label, text) for name, label, text in learning_figures(status) if name in LEARNING]
    if (stale := _staleness(metrics)) != NONE:
        figures.append(("staleness", stale))
    if status.episode_tokens.max:
        lengths = status.episode_tokens
        figures.append(
            ("episode tokens", f"{lengths.mean:.0f} (p95 {lengths.p95:.0f}, max {lengths.max:.0f})")
        )
    if recorded := metrics.get("recorded_episodes"):
        figures.append(("recorded episodes", f"{recorded:,.0f} ({metrics['recorded_reward_mean']:+.3f})"))
    columns = tuple(name for name, _ in figures)
    row = tuple(text for _, text in figures)
    return StatusTable("learning", columns, (row,) if row else (), numbers=frozenset(columns))


def mixture(status: RunStatus) -> StatusTable:
    """The last step's figures of each environment of a mixture, and its gain in the last evaluation, with the
    part of its first score that a protected one has kept.

    A step that had no group of an environment leaves its row without figures of the step. Staleness is in
    versions, of the step's trajectories; truncated is the part of them that a bound ended.
    """
    judged = [evaluation for evaluation in status.evaluations if evaluation.done]
    gains = by_environment(judged[-1].metrics) if judged else {}
    steps = by_environment(status.metrics)
    protects = any("kept" in figures for figures in gains.values())
    columns = (
        "mixture", "trajectories", "reward", "win rate", "tokens", "truncated", "staleness", "gain",
        *(["kept"] if protects else []),
    )  # fmt: skip
    rows = tuple(
        (label, *_mixture_cells(status, steps.get(label, {}), gains.get(label, {}), protects=protects))
        for label in dict.fromkeys((*gains, *steps))
    )
    least = ("tokens", "truncated", "trajectories", "staleness", "win rate")
    return StatusTable("mixture", columns, rows, numbers=frozenset(columns[1:]), least=least)


def _mixture_cells(
    status: RunStatus, step: Mapping[str, float], gain: Mapping[str, float], *, protects: bool
) -> Iterator[str]:
    yield _figure(step, "sequences", "{:,.0f}")
    yield _figure(step, "reward_mean", "{:+.3f}")
    yield _figure(step, "win_rate", "{:.1%}") if status.has_winners else NONE
    yield _figure(step, "length_mean", "{:,.0f}")
    played = step.get("sequences", 0.0)
    yield f"{step.get('truncated_episodes', 0.0) / played:.1%}" if played else NONE
    yield _staleness(step)
    yield _figure(gain, "gain", "{:+.3f}")
    if protects:
        yield _figure(gain, "kept", "{:.1%}")


def _staleness(figures: Mapping[str, float]) -> str:
    """The staleness of a batch's trajectories, for example "0.50 (max 1)"."""
    if "staleness_mean" not in figures:
        return NONE
    return f"{figures['staleness_mean']:.2f} (max {figures.get('staleness_max', 0.0):.0f})"


def seat_lines(status: RunStatus) -> Iterator[str]:
    """A line for each environment that the policy plays from several seats: how each seat did in the last
    step.

    For example "self-play: seat 0 wins 55.0% (reward +0.100), seat 1 wins 41.3% (reward -0.100)".
    """
    for label, seats in by_seat(status.metrics).items():
        shown = ", ".join(f"seat {seat} {_seat(figures, status)}" for seat, figures in seats.items())
        yield f"self-play{' of ' if label else ''}{label}: {shown}"


def _seat(figures: Mapping[str, float], status: RunStatus) -> str:
    reward = f"{figures.get('reward_mean', 0.0):+.3f}"
    if not status.has_winners:
        return f"scores {reward}"
    return f"wins {figures.get('win_rate', 0.0):.1%} (reward {reward})"


def _figure(figures: Mapping[str, float], name: str, form: str) -> str:
    return form.format(figures[name]) if name in figures else NONE


def switches(stages: Sequence[StageState]) -> StatusTable:
    """The running switch and the last one that ended of each stage, with their reasons."""
    rows = []
    for stage in stages:
        if stage.switching is not None:
            rows.append((stage.name, switch_text(stage.switching, runs=True), stage.switching.reason or NONE))
        if stage.last is not None:
            rows.append((stage.name, switch_text(stage.last), stage.last.reason or NONE))
    return StatusTable(
        "switches", ("stage", "switch", "reason"), tuple(rows), prose=frozenset({"switch", "reason"})
    )


def processes(snapshot: RunSnapshot) -> StatusTable:
    rows = tuple(
        (process.name, process.state, clock(process.seconds), str(process.pid or NONE), str(process.restarts))
        for process in snapshot.processes
    )
    columns = ("process", "state", "for", "pid", "restarts")
    return StatusTable(
        "processes", columns, rows, numbers=numbers("for", "pid", "restarts"), least=("restarts", "pid")
    )


def endpoints(snapshot: RunSnapshot) -> StatusTable:
    return StatusTable("endpoints", ("service", "address"), tuple(snapshot.endpoints.items()))
