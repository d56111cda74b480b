"""The consumers of a run's trajectories, and the columns between them and the ledger.

    ledger: ready, planned ──follow──► columns ──held back──► ledger: plan
       ▲                                │ ▲
       └── lose ◄── columns are gone ── lease, complete ◄──► a stage

Pure. The trainer's consumption is the ledger's: ready (waiting), planned (leased), trained (done).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from earl.errors import FragmentError, LedgerError
from earl.parallelism import REFERENCE, REWARD_MODEL, TRAINER
from services.scheduler.batches.columns import (
    ColumnLease,
    ColumnProgress,
    ColumnRegistry,
    Location,
    TrajectoryRef,
)
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.state.tickets import Purpose, Ticket, TicketState
from services.scheduler.state.workers import WorkerId

# Roles that read nothing of an environment without a KL to the reference policy; nothing of what is scored.
UNREFERENCED, SCORED = frozenset({REFERENCE}), frozenset({REWARD_MODEL})


def require(columns: ColumnRegistry, role: str) -> None:
    """Raises LedgerError if the run has no stage of this role."""
    if role not in columns.workers and role not in columns.ended:
        raise LedgerError(
            f"nothing in this run needs what a {role} stage makes",
            "trainer.kl_coefficient or protected_kl > 0 asks for a reference stage, teacher.path or "
            "url for a teacher, reward_model.path for a reward model; without them start none",
        )


def follow(columns: ColumnRegistry, ledger: Ledger) -> None:
    """Brings the columns to the ledger: what changed there since the last time, and which stages are gone.

    There is each live trajectory of training that a batch has, or may take.
    """
    tables = ledger.tables
    if not columns.workers:
        tables.take_moved()
        return  # nobody makes columns of them
    for role, known in columns.workers.items():
        if known is not None:
            worker = tables.workers.get(known.name)
            if worker is None or worker.id != known:
                columns.left(role)
    for number in tables.take_moved():
        trajectory = _trajectory(tables.tickets.get(number), ledger.rules.reference_for)
        if trajectory is None:
            columns.forget(number)
        else:
            columns.put(trajectory)


def lease(
    columns: ColumnRegistry, ledger: Ledger, role: str, worker: WorkerId, credit_tokens: int
) -> ColumnLease:
    """Leases to a stage what it is to do now, what the planned batch lacks first, under a new fence."""
    follow(columns, ledger)
    batch = ledger.tables.batch
    fence = ledger.tables.run.fence + 1
    leased = columns.lease(role, worker, fence, credit_tokens, batch.tickets if batch else ())
    if leased.trajectories:
        ledger.issue_fence()
    return leased


def complete(
    columns: ColumnRegistry,
    ledger: Ledger,
    role: str,
    worker: WorkerId,
    fence: int,
    results: Mapping[tuple[int, int], Location],
    lost: Iterable[tuple[int, int]],
) -> int:
    """Takes what a stage has made, scores into the ledger, and what it could not read.

    Returns how many results are refused. Raises FragmentError for a score that is not finite, and LedgerError
    for what the role does not make, having changed nothing.
    """
    for (number, _), made in results.items():
        if made.filled and (made.score is None) == (role == REWARD_MODEL):
            raise LedgerError(
                f"the role {role} reports a {'column' if made.score is None else 'score'} of ticket {number}",
                "run scheduler and stages of one version",
            )
        if made.score is not None and not math.isfinite(made.score):
            raise FragmentError(
                f"the role {role} gives the trajectory of ticket {number} the score {made.score}: the column "
                "score must have finite numbers",
                "its weights are damaged, or its dtype is too narrow",
            )
    follow(columns, ledger)
    refused, gone = columns.complete(role, worker, fence, results, lost)
    done = columns.locations(role, (number for number, _ in results))
    for (number, attempt), location in results.items():
        if location.score is not None and done.get(number) == location:
            ledger.score(number, attempt, location.score)
    lose(ledger, gone)
    return refused


def must_wait(columns: ColumnRegistry, ledger: Ledger) -> bool:
    """Returns whether the planned batch lacks a column that can still come."""
    batch = ledger.tables.batch
    return batch is not None and not batch.lost and any(map(columns.lacks, batch.tickets))


def lose(ledger: Ledger, gone: Iterable[TrajectoryRef]) -> None:
    """Has the tickets tried again whose trajectories cannot be read any more."""
    for trajectory in gone:
        ledger.lose(trajectory.ticket_id, trajectory.attempt)


def progress(columns: ColumnRegistry, ledger: Ledger) -> dict[str, ColumnProgress]:
    """Trajectories by role, the trainer last; nothing in a run without stages."""
    stages = columns.progress()
    if not stages:
        return {}
    counts = ledger.tables.counts()
    ready, planned, trained = (
        counts.get(state, 0) for state in (TicketState.READY, TicketState.PLANNED, TicketState.TRAINED)
    )
    return {**stages, TRAINER: ColumnProgress(ready, planned, trained)}


def _trajectory(ticket: Ticket | None, reference_for: Collection[str] | None) -> TrajectoryRef | None:
    """A ticket's trajectory, if it is one that a batch of training has or may take.

    reference_for: labels of the environments whose trajectories the reference stage reads; None for all.
    """
    if ticket is None or ticket.purpose is not Purpose.TRAIN or ticket.result is None:
        return None
    if ticket.state not in (TicketState.READY, TicketState.PLANNED):
        return None
    result = ticket.result
    unread = frozenset() if reference_for is None or ticket.environment in reference_for else UNREFERENCED
    return TrajectoryRef(
        ticket.id,
        ticket.attempt,
        ticket.group,
        result.descriptor_key,
        result.total_tokens,
        result.trained_tokens,
        unread | SCORED if result.score is not None else unread,
    )
