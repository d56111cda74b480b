"""Checks what scheduler and gateway list for an operator: tickets in progress, and environment hosts."""

from __future__ import annotations

import dataclasses

from earl.dashboard.codec_services import host, ticket
from earl.stack.codec import decode_leases
from earl.stack.status import TicketLease
from earl.ticket_ranges import RangeSet
from earl.v1 import common_pb2, scheduler_pb2
from services.scheduler.api.codec_tickets import encode_tickets
from services.scheduler.ledger import phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.state.tickets import Attempt, EpisodeResult, TicketState
from services.scheduler.state.workers import WorkerRecord
from services.scheduler.status import SchedulerStatus
from tests.support.gateway_world import World
from tests.support.ledger import RULES

# Fields of a status that the answer to GetStatus has in another form.
ENCODED = {"counts", "issued", "worker_views", "judged", "progress", "stage_views"}


def begun() -> Ledger:
    """A ledger that trains, its clock at 100, with workers "w" and "t"."""
    ledger = Ledger(dataclasses.replace(RULES, warmup_batches=0, evaluation_episodes=0))
    ledger.tables.now = 100.0
    ledger.membership.join(WorkerRecord(name="w", incarnation=1), 100.0)
    ledger.membership.join(WorkerRecord(name="t", incarnation=1), 100.0)
    reconcile(ledger, "t", 1, 1, 1, RangeSet())
    ledger.membership.mark_alive("w", 1, 100.0, 1)
    phases.advance(ledger, 0.0)
    return ledger


def test_tickets_are_listed_by_state_the_longest_in_it_first():
    ledger = begun()
    issued = len(ledger.tables.tickets)
    ledger.tables.now = 110.0
    leased = ledger.lease("w", 1, 3, 110.0)
    ledger.tables.now = 115.0
    done = leased[1]
    given = Attempt(done.id, done.attempt, done.fence)
    columns = EpisodeResult(
        total_tokens=9, trained_tokens=4, oldest_version=1, newest_version=1, descriptor_key="k"
    )
    ledger.attempts.complete("w", 1, given, columns)
    rows = [ticket(one) for one in encode_tickets(ledger.tables, 100, 120.0).tickets]
    found = {
        state: [one for one in rows if one["state"] == state] for state in ("pending", "leased", "ready")
    }
    assert [len(one) for one in found.values()] == [issued - 3, 2, 1]
    assert {one["age_s"] for one in found["pending"]} == {20.0}
    assert [(one["ticket"], one["worker"], one["age_s"]) for one in found["leased"]] == [
        (leased[0].id, "w", 10.0),
        (leased[2].id, "w", 10.0),
    ]
    assert (found["ready"][0]["tokens"], found["ready"][0]["age_s"], found["ready"][0]["purpose"]) == (
        9,
        5.0,
        "train",
    )
    assert decode_leases(encode_tickets(ledger.tables, 1, 120.0).tickets) == (
        TicketLease(leased[0].id, "w", 10.0, leased[0].attempt, "train"),
    )
    few = encode_tickets(ledger.tables, 1, 120.0).tickets
    assert [one.ticket_id for one in few] == [leased[2].id + 1, leased[0].id, done.id]


def test_what_is_over_is_not_listed_and_a_restored_ledger_counts_from_its_start():
    ledger = begun()
    changes = ledger.tables.take_changes()
    stored = [(one.kind, one.field, one.data) for one in changes.records if one.data is not None]
    again = Ledger.restored(ledger.rules, stored, 500.0)
    assert {ticket(one)["age_s"] for one in encode_tickets(again.tables, 100, 503.0).tickets} == {3.0}
    for one in list(again.tables.tickets.values()):
        again.tables.move(one, TicketState.DROPPED, "phase_over")
    assert not encode_tickets(again.tables, 100, 503.0).tickets
    again.record_checkpoint(RangeSet())
    assert not again.tables.state_since


def test_hosts_are_listed_with_their_faults_and_quarantine():
    world = World(quarantine_faults=2, quarantine_s=10, lease_s=60)
    bad, _good = world.host("bad", capacity=9), world.host("good", capacity=1, environments=("game", "other"))
    for number in (1, 2):
        session = world.started(bad, number)
        world.step(number, 1)
        world.answer(bad, session, 1, done=True, ending=common_pb2.ENDING_ENV_ERROR, message="boom")
    world.open(3)
    answer = world.gateway.hosts()
    rows = [host(one, 1000.0) for one in answer.hosts]
    assert rows[0] == {
        "name": "bad", "capacity": 9, "open": 0, "faults": 1, "state": "attached", "probation": [],
        "quarantines": [{"environment": "game", "until": 1010, "reason": "boom"}], "more": 0, "wrong": True,
    }  # fmt: skip
    assert rows[1] == {
        "name": "good", "capacity": 1, "open": 1, "faults": 0, "state": "attached", "probation": [],
        "quarantines": [], "more": 0, "wrong": False,
    }  # fmt: skip
    assert list(answer.hosts[1].environments) == ["game", "other"]
    assert (
        answer.waits == 3 and answer.totals["quarantines"] == 1 and answer.wait_longest_s >= answer.wait_p50_s
    )


def test_all_that_a_status_computes_is_answered():
    """Figures of metrics alone are computed for them alone: every viewer of a run asks for its status."""
    answered = set(scheduler_pb2.GetStatusResponse.DESCRIPTOR.fields_by_name) | ENCODED
    assert {field.name for field in dataclasses.fields(SchedulerStatus)} <= answered
