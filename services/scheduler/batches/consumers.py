"""Who consumes a run's trajectories, and the dock between them and the ledger.

    ledger: ready, planned ──follow──► dock ──held back──► ledger: plan
       ▲                                │ ▲
       └── lose ◄── columns are gone ── lease, complete ◄──► a stage

Pure. The trainer's consumption is the ledger's: ready (waiting), planned (leased), trained (done).
"""

from __future__ import annotations

from collections.abc import Iterable

from earl.errors import LedgerError
from services.scheduler.batches.columns import Dock, Lease, Progress, Role, Stage, Trajectory
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.state.records import Purpose, State, Ticket

REFERENCE = Role("reference", frozenset({"tokens", "loss_mask"}), frozenset({"reference"}))
# A batch of warm-up needs what was sampled, whatever the run asks for beside.
TRAINER = Role("trainer", frozenset({"tokens", "loss_mask", "logprobs"}))


def dock_of(stages: Iterable[Role]) -> Dock:
    """The dock of a run with these stages, all of whose columns the trainer needs."""
    stages = tuple(stages)
    made = frozenset[str]().union(*(role.makes for role in stages))
    return Dock(Role(TRAINER.name, TRAINER.needs | made), stages)


def require(dock: Dock, role: str) -> None:
    """Raises LedgerError if the run has no stage of this role."""
    if role not in dock.stages:
        raise LedgerError(
            f"nothing in this run needs what a {role} stage makes",
            "trainer.kl_coefficient > 0 asks for a reference stage; without it start none",
        )


def follow(dock: Dock, ledger: Ledger) -> None:
    """Brings the dock to the ledger: what changed there since the last time, and which stages are gone.

    There is each live trajectory of training that a batch has, or may take.
    """
    book = ledger.book
    if not dock.stages:
        book.take_moved()
        return  # nobody makes columns of them
    for role, stage in dock.stages.items():
        if stage is not None:
            member = book.members.get(stage[0])
            if member is None or member.incarnation != stage[1]:
                dock.left(role)
    for number in book.take_moved():
        trajectory = _trajectory(book.tickets.get(number))
        if trajectory is None:
            dock.forget(number)
        else:
            dock.put(trajectory)


def lease(dock: Dock, ledger: Ledger, role: str, stage: Stage, credit_tokens: int) -> Lease:
    """What a stage is to do now, what the planned batch lacks first; the fence is the ledger's next one."""
    follow(dock, ledger)
    batch = ledger.book.batch
    fence = ledger.book.run.fence + 1
    leased = dock.lease(role, stage, fence, credit_tokens, batch.tickets if batch else ())
    if leased.trajectories:
        ledger.book.run.fence = fence
    return leased


def must_wait(dock: Dock, ledger: Ledger) -> bool:
    """Whether the planned batch lacks a column that can still come."""
    batch = ledger.book.batch
    return batch is not None and not batch.lost and any(map(dock.lacks, batch.tickets))


def lose(ledger: Ledger, gone: Iterable[Trajectory]) -> None:
    """What was sampled of these trajectories cannot be read any more: their tickets are tried again."""
    book = ledger.book
    for trajectory in gone:
        ticket = book.tickets.get(trajectory.ticket_id)
        if ticket is None or ticket.attempt != trajectory.attempt:
            continue
        if ticket.state is State.READY:
            ledger.fail(ticket)
        elif book.batch is not None and ticket.id in book.batch.tickets and ticket.id not in book.batch.lost:
            # The trainer may have read it already: only its next call tells.
            book.batch.lost.append(ticket.id)


def progress(dock: Dock, ledger: Ledger) -> dict[str, Progress]:
    """Trajectories by role, the trainer last; nothing in a run without stages."""
    stages = dock.progress()
    if not stages:
        return {}
    counts = ledger.book.counts()
    ready, planned, trained = (counts.get(state, 0) for state in (State.READY, State.PLANNED, State.TRAINED))
    return {**stages, TRAINER.name: Progress(ready, planned, trained)}


def _trajectory(ticket: Ticket | None) -> Trajectory | None:
    """A ticket's trajectory, if it is one that a batch of training has or may take."""
    if ticket is None or ticket.purpose is not Purpose.TRAIN or ticket.result is None:
        return None
    if ticket.state not in (State.READY, State.PLANNED):
        return None
    result = ticket.result
    return Trajectory(
        ticket.id,
        ticket.attempt,
        ticket.group,
        result.descriptor_key,
        result.total_tokens,
        result.trained_tokens,
    )
