"""Brings the ledger to a checkpoint manifest: the manifest is the truth about training.

manifest holds it │ in the ledger    │ becomes
──────────────────┼──────────────────┼───────────────────────────────────────────────
yes               │ trained          │ stays
yes               │ anything else    │ trained (the crash came before the commit)
no                │ trained          │ dropped(rolled_back); its place is issued again
no                │ planned          │ ready if its arena still exists, otherwise tried again;
                  │                  │ a replay: dropped(batch_dissolved)
no                │ ready, newer than the restored version │ dropped(rolled_back)
yes               │ unknown          │ trained (the store was lost); gaps are dropped(forgotten)
"""

from __future__ import annotations

from earl.errors import LedgerError
from earl.ticket_ranges import RangeSet
from services.scheduler.ledger.admission import places
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.state.facts import BatchCommitted
from services.scheduler.state.tickets import LIVE, REPLAYED, Purpose, Reason, TicketState

ROLLED_BACK = f"dropped:{Reason.ROLLED_BACK}"
FORGOTTEN = f"dropped:{Reason.FORGOTTEN}"


def reconcile(
    ledger: Ledger, name: str, incarnation: int, version: int, next_batch: int, consumed: RangeSet
) -> int:
    """A trainer group starts at `version` with `consumed` in its parameters; tickets rolled back.

    Version 1 and no tickets is a fresh start; every committed batch made one version. May be repeated.
    Raises LedgerError on version 0, UnknownWorker if the trainer did not join.
    """
    ledger.membership.worker(name, incarnation)
    if version < 1:
        raise LedgerError(f"version {version} cannot be trained from", "version 1 is the initial parameters")
    run, batch = ledger.tables.run, ledger.tables.batch
    ledger.tables.log.reconciling(version, consumed, name, incarnation)
    if batch is not None and batch.id < next_batch:
        run.last_batch = batch.id  # the manifest holds it
    tickets = ledger.tables.tickets.values()
    # The batch that made this version, if the ledger did not see it committed.
    unseen = [
        ticket
        for ticket in tickets
        if ticket.id in consumed and ticket.state is not TicketState.TRAINED and ticket.result is not None
    ]
    ledger.successes.add_trained(version - 1, unseen)
    ledger.lengths.add_trained(version - 1, unseen)
    played = [ticket for ticket in unseen if ticket.purpose is Purpose.TRAIN]
    replays = [ticket for ticket in unseen if ticket.purpose is Purpose.REPLAY]
    if played:
        ledger.replay.train(version - 1, played, replays)
    torn, rolled_back = _tickets(ledger, consumed)
    rolled_back += _compacted(ledger, consumed)
    _unknown(ledger, consumed)
    ledger.dissolve()
    for purpose, group in torn:
        # Part of a group is in the manifest: the others can no longer be compared with it.
        ledger.attempts.drop_group(purpose, group, Reason.GROUP_INCOMPLETE)
    if version < run.version:
        _abandon(ledger, version)
    run.version = run.checkpoint = run.next_checkpoint = version
    ledger.replay.keep_trained(consumed)
    ledger.replay.record_checkpoint()
    run.next_batch = max(run.next_batch, next_batch)
    run.trainer, run.trainer_incarnation = name, incarnation
    ledger.tables.log.reconciled(version)
    return rolled_back


def _tickets(ledger: Ledger, consumed: RangeSet) -> tuple[list[tuple[Purpose, int]], int]:
    """(groups of what became trained, number of tickets rolled back) among the kept records."""
    tables, keys, rolled_back = ledger.tables, [], 0
    torn: dict[tuple[Purpose, int], None] = {}
    for ticket in list(tables.tickets.values()):
        if ticket.id in consumed and ticket.state is not TicketState.TRAINED:
            torn[ticket.purpose, ticket.group] = None
            freed = ticket.purpose is not Purpose.REPLAY  # its source's columns were, long ago
            if freed and ticket.result is not None and ticket.result.descriptor_key:
                keys.append(ticket.result.descriptor_key)
            tables.move(ticket, TicketState.TRAINED, result=None)
        elif ticket.id not in consumed and ticket.state is TicketState.TRAINED:
            tables.move(ticket, TicketState.DROPPED, Reason.ROLLED_BACK)
            rolled_back += 1
    if (batch := tables.batch) is not None:
        batch.tickets = [number for number in batch.tickets if number not in consumed]
        batch.replays = [number for number in batch.replays if number not in consumed]
    if keys:
        tables.record_fact(BatchCommitted(tables.run.last_batch, tables.run.version, tuple(keys)))
    return list(torn), rolled_back


def _compacted(ledger: Ledger, consumed: RangeSet) -> int:
    closed = dict(ledger.tables.closed)
    trained, lost, claimed = closed.get("trained", RangeSet()), RangeSet(), RangeSet()
    for bucket, ids in list(closed.items()):
        if bucket in ("trained", REPLAYED):
            lost |= ids - consumed
            closed[bucket] = ids & consumed
        else:
            claimed |= ids & consumed
            closed[bucket] = ids - consumed
    if not len(lost) and not len(claimed):
        return 0
    closed["trained"] = (trained & consumed) | claimed
    closed[ROLLED_BACK] = closed.get(ROLLED_BACK, RangeSet()) | lost
    ledger.tables.close_ranges(closed)
    return len(lost)


def _unknown(ledger: Ledger, consumed: RangeSet) -> None:
    """Ids that this ledger never issued: its store was lost, or is older than the manifest."""
    tables, run = ledger.tables, ledger.tables.run
    if consumed.stop <= run.next_ticket:
        return
    new = RangeSet([(run.next_ticket, consumed.stop)])
    closed = dict(tables.closed)
    closed["trained"] = closed.get("trained", RangeSet()) | (new & consumed)
    closed[FORGOTTEN] = closed.get(FORGOTTEN, RangeSet()) | (new - consumed)
    # Groups are as unknown as the tickets: continue past any that can have existed.
    run.next_group = max(run.next_group, consumed.stop)
    run.next_ticket = consumed.stop
    tables.close_ranges(closed)


def _abandon(ledger: Ledger, version: int) -> None:
    """The versions after `version` are given up, and with them what they sampled or judged."""
    tables = ledger.tables
    for name in [name for name, done in tables.evaluations.items() if done.version > version]:
        for ticket in list(tables.tickets.values()):
            if ticket.evaluation == name and ticket.state in LIVE:
                tables.move(ticket, TicketState.DROPPED, Reason.ROLLED_BACK)
        del tables.evaluations[name]
    for purpose in Purpose:
        window = places(ledger.rules, purpose, version)
        for group, members in list(tables.groups[purpose].items()):
            tickets = [tables.tickets[number] for number in members]
            too_early = purpose is not Purpose.EVALUATE and tickets[0].index >= window.stop
            results = [ticket.result for ticket in tickets if ticket.result]
            if too_early or any(result.newest_version > version for result in results):
                ledger.attempts.drop_group(purpose, group, Reason.ROLLED_BACK)
                continue
            for ticket in tickets:
                if ticket.state is TicketState.LEASED:
                    ledger.attempts.retry(ticket)
                oldest = min(ticket.min_version, version)
                if ticket.state is TicketState.PENDING and {ticket.min_version, ticket.floor} != {oldest}:
                    tables.change(ticket, min_version=oldest, floor=oldest)
    ledger.successes.roll_back(version)
    ledger.lengths.roll_back(version)
    ledger.replay.roll_back(version)
    tables.run.train_over = False
