"""A look at a run as tables of text, for `earl status` and `earl top`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from earl.cli.lib.gateway_codec import Latency
from earl.cli.lib.snapshot import NOWHERE, Look, State
from earl.cli.lib.switches import switch_text
from earl.cli.run.live_view import (
    PHASES,
    STATE_WORDS,
    STATES,
    clock,
    progress_of,
    role_figures,
    transfer,
)
from earl.stack.status import RunStatus, StageState, WorkerState

NONE = "–"


@dataclass(frozen=True, slots=True)
class Table:
    """One table. keys: of its rows, for who selects one. numbers: columns that are right-aligned."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: tuple[str, ...] = ()
    numbers: frozenset[str] = frozenset()


def headline(look: Look) -> str:
    """The run in one line: name, state, how far it is."""
    status = look.status
    parts = [f"{status.run}  {look.state}"]
    if status.phase:
        done, total = progress_of(status)
        parts.append(f"{PHASES.get(status.phase, status.phase)} {done}/{total}" if total else status.phase)
    if status.version:
        parts.append(f"version {status.version}")
    if look.elapsed_s:
        parts.append(clock(look.elapsed_s))
    return ", ".join(parts)


def remarks(look: Look) -> Iterator[str]:
    """What is not as it should be, a line each."""
    for name, reason in look.silent.items():
        if look.state is State.RUNNING or look.directory == NOWHERE:
            yield f"{name} does not answer: {reason}"
    if look.failure and not look.state.goes_on:
        yield f"{look.failure.get('error')}: {look.failure.get('message')}"
    if look.state is State.LOST and look.directory != NOWHERE:
        yield f"its launcher is gone without a word; clean up with: earl down {look.directory}"
    if look.status.message and not look.failure:
        yield look.status.message


def tables(look: Look) -> Iterator[Table]:
    """Those that have rows."""
    for table in (
        stages(look.status),
        workers(look.status),
        ledger(look.status),
        queues(look),
        leases(look),
        environments(look),
        learning(look.status),
        switches(look.status.stages),
        processes(look),
        endpoints(look),
    ):
        if table.rows:
            yield table


def stages(status: RunStatus) -> Table:
    """Every stage: how it is cut, its tokens/s, and what the selector says."""
    rows = tuple(
        (
            stage.name,
            f"{stage.running or 'cut unevenly'}{' (pinned)' if stage.pinned else ''}",
            tokens_per_s(status, stage.name),
            f"{memory:.0%}" if (memory := fullest(status, stage.name)) else NONE,
            stage.sentence or ("it is pinned" if stage.pinned else NONE),
        )
        for stage in status.stages
    )
    columns = ("stage", "layout", "tokens/s", "memory", "selector")
    return Table(
        "stages", columns, rows, tuple(stage.name for stage in status.stages), numbers("tokens/s", "memory")
    )


def tokens_per_s(status: RunStatus, stage: str) -> str:
    """What its workers make together: generated, computed, or trained on."""
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


def workers(status: RunStatus) -> Table:
    columns = ("worker", "stage", "layout", "version", "busy", "KV used", "heard", "read")
    rows = tuple(worker(state, silent=status.silent(state)) for state in status.workers)
    keys = tuple(state.name for state in status.workers)
    return Table("workers", columns, rows, keys, numbers("version", "busy", "KV used", "heard"))


def worker(state: WorkerState, *, silent: bool) -> tuple[str, ...]:
    busy = f"{state.capacity} rank{'s' if state.capacity != 1 else ''}"
    if state.stage == "rollout":
        busy = f"{state.running}/{state.capacity}"
    kv = f"{state.gauges['kv_used_fraction']:.0%}" if state.gauges.get("kv_tokens") else NONE
    heard = f"silent for {state.silent_s:.0f} s" if silent else f"{state.silent_s:.1f} s ago"
    read = " · ".join(transfer(path, moved) for path, moved in state.transfers.items()) or NONE
    return state.name, state.stage, state.parallelism, str(state.version or NONE), busy, kv, heard, read


def ledger(status: RunStatus) -> Table:
    """Every ticket by its state; leases are those that are being played."""
    counts = status.ledger
    if not counts.issued:
        return Table("tickets", (), ())
    names = [name for name, _ in STATES]
    values = [counts.dropped_total if name == "dropped" else getattr(counts, name) for name in names]
    row = (*(f"{value:,}" for value in values), f"{counts.issued:,}")
    columns = (*(STATE_WORDS.get(name, name) for name in names), "issued")
    return Table("tickets", columns, (row,), numbers=frozenset(columns))


def queues(look: Look) -> Table:
    """What waits: tickets, episodes for a host, sequences for an engine, trajectories for a stage."""
    status, counts = look.status, look.status.ledger
    rows: list[tuple[str, str, str]] = []
    if counts.issued:
        oldest = look.leases[0] if look.leases else None
        held = f", oldest {clock(oldest.age_s)} {oldest.worker}" if oldest is not None else ""
        rows.append(("tickets", f"{counts.pending:,}", f"{counts.leased:,} leased{held}"))
    if look.environments:
        opened = sum(environment.open for environment in look.environments)
        room = sum(environment.capacity for environment in look.environments)
        queued = sum(environment.queued for environment in look.environments)
        rows.append(("sessions for a host", f"{queued:,}", f"{opened:,} of {room:,} open"))
    waiting = sum(worker.gauges.get("engine_waiting", 0.0) for worker in status.workers)
    running = sum(worker.gauges.get("engine_running", 0.0) for worker in status.workers)
    if running or waiting:
        rows.append(("sequences for an engine", f"{waiting:,.0f}", f"{running:,.0f} computed"))
    for role in status.roles:
        figures = ", ".join(f"{count:,} {word}" for word, count, _ in role_figures(role)[1:])
        rows.append((f"trajectories for the {role.name}", f"{role.waiting:,}", figures))
    return Table("queues", ("queue", "waiting", "beyond"), tuple(rows), numbers=numbers("waiting"))


def leases(look: Look) -> Table:
    """Those that are being played for longest, and by whom."""
    rows = tuple(
        (lease.worker, clock(lease.age_s), f"{lease.ticket:,}", str(lease.attempt), lease.purpose)
        for lease in look.leases
    )
    columns = ("oldest leases", "for", "ticket", "attempt", "purpose")
    return Table("leases", columns, rows, numbers=numbers("for", "ticket", "attempt"))


def environments(look: Look) -> Table:
    columns = ("environment", "hosts", "open", "queued", "quarantined", "reset p50 / p99", "step p50 / p99")
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
        for environment in look.environments
    )
    return Table("environments", columns, rows, numbers=frozenset(columns[1:]))


def latency(latency_s: Latency) -> str:
    """For example "0.4 / 2.1 ms"."""
    return f"{latency_s.p50_s * 1e3:.1f} / {latency_s.p99_s * 1e3:.1f} ms" if latency_s.count else NONE


LEARNING = (
    ("reward_mean", "reward", "{:+.3f}"),
    ("win_rate", "win rate", "{:.1%}"),
    ("loss", "loss", "{:+.4f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("logprob_mismatch", "mismatch", "{:.2g} nats"),
    ("tokens_per_s", "tokens/s", "{:,.0f}"),
)


def learning(status: RunStatus) -> Table:
    """The last step's figures, in one row; staleness is of its trajectories, in versions."""
    metrics = status.metrics
    figures = [(label, form.format(metrics[name])) for name, label, form in LEARNING if name in metrics]
    if "staleness_mean" in metrics:
        stale = f"{metrics['staleness_mean']:.2f} (max {metrics.get('staleness_max', 0.0):.0f})"
        figures.append(("staleness", stale))
    if status.episode_tokens.max:
        lengths = status.episode_tokens
        figures.append(
            ("episode tokens", f"{lengths.mean:.0f} (p95 {lengths.p95:.0f}, max {lengths.max:.0f})")
        )
    columns = tuple(name for name, _ in figures)
    row = tuple(text for _, text in figures)
    return Table("learning", columns, (row,) if row else (), numbers=frozenset(columns))


def switches(stages: Sequence[StageState]) -> Table:
    """The one that runs and the last that ended of each stage, with their reasons."""
    rows = []
    for stage in stages:
        if stage.switching is not None:
            rows.append((stage.name, switch_text(stage.switching, runs=True), stage.switching.reason or NONE))
        if stage.last is not None:
            rows.append((stage.name, switch_text(stage.last), stage.last.reason or NONE))
    return Table("switches", ("stage", "switch", "because"), tuple(rows))


def processes(look: Look) -> Table:
    rows = tuple(
        (process.name, process.state, clock(process.seconds), str(process.pid or NONE), str(process.restarts))
        for process in look.processes
    )
    columns = ("process", "state", "for", "pid", "restarts")
    return Table("processes", columns, rows, numbers=numbers("for", "pid", "restarts"))


def endpoints(look: Look) -> Table:
    return Table("endpoints", ("of", "address"), tuple(look.endpoints.items()))


def numbers(*columns: str) -> frozenset[str]:
    return frozenset(columns)
