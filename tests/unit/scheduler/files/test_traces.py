"""Checks which tickets the scheduler traces, what it computes for that, and what of each leaves."""

from collections import Counter

import pytest

from earl.obs import tracing
from services.scheduler.files.traces import TicketTraces
from tests.support.collector import Collector
from tests.unit.scheduler.ledger.test_ledger import begun, finish, lease

HALF = tracing.TracedTickets("run", 7, 0.5)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Counts how often each ticket's traceparent is computed."""
    counts: Counter[int] = Counter()
    parent = tracing.TracedTickets.parent

    def counted(tickets: tracing.TracedTickets, ticket_id: int) -> str:
        counts[ticket_id] += 1
        return parent(tickets, ticket_id)

    monkeypatch.setattr(tracing.TracedTickets, "parent", counted)
    return counts


def test_a_tickets_traceparent_is_computed_once(asked):
    ledger = begun(group_size=8, batch_groups=8)
    traces = TicketTraces(ledger.tables, HALF)
    tickets = lease(ledger)
    assert len(tickets) > 32
    for _ in range(3):
        traces.moved(ticket.id for ticket in tickets)
        parents = {ticket.id: traces.parent(ticket.id) for ticket in tickets}
    finish(ledger, tickets)
    traces.moved(ticket.id for ticket in tickets)
    assert asked == Counter(ledger.tables.tickets.keys())
    assert parents == {ticket.id: HALF.parent(ticket.id) for ticket in tickets}
    assert "" in parents.values() and any(parents.values())


def test_a_scheduler_that_begins_again_traces_the_same_tickets():
    ledger = begun(group_size=8, batch_groups=8)
    ids = [ticket.id for ticket in lease(ledger)]
    before, after = TicketTraces(ledger.tables, HALF), TicketTraces(ledger.tables, HALF)
    assert [before.parent(number) for number in ids] == [after.parent(number) for number in ids]
    assert sum(map(bool, map(after.parent, ids))) > len(ids) / 4


def test_where_nothing_is_traced_nothing_is_computed(asked):
    ledger = begun()
    traces = TicketTraces(ledger.tables, tracing.TracedTickets("run", 7, 0.0))
    tickets = lease(ledger)
    traces.moved(ticket.id for ticket in tickets)
    assert [traces.parent(ticket.id) for ticket in tickets] == [""] * len(tickets) and not asked


def test_the_states_of_a_ticket_are_spans_of_its_trace():
    ledger = begun()
    traces = TicketTraces(ledger.tables, tracing.TracedTickets("run", 7, 1.0))
    with Collector() as collector:
        with tracing.exporting(collector.address, "scheduler", "run"):
            [ticket, *_] = tickets = lease(ledger)
            traces.moved(one.id for one in tickets)
            parent = traces.parent(ticket.id)
            finish(ledger, [ticket])
            traces.moved([ticket.id])
        spans = [one for one in collector.spans() if one.trace_id.hex() == parent[3:35]]
    assert [span.name for span in spans] == ["ticket pending", "ticket leased"]
    assert {span.parent_span_id.hex() for span in spans} == {parent[36:52]}


def test_one_that_is_given_back_and_leased_again_in_between_was_leased_twice(monkeypatch):
    spans: list[tuple[str, str, int]] = []

    def record(name, parent, start_ns, end_ns, attributes, **_):
        spans.append((parent, name, attributes.get("attempt", 0)))

    monkeypatch.setattr(tracing, "record", record)
    ledger = begun()
    traces = TicketTraces(ledger.tables, tracing.TracedTickets("run", 7, 1.0))
    [ticket, *_] = lease(ledger)
    parent = traces.parent(ticket.id)
    traces.moved([ticket.id])
    ledger.attempts.retry(ticket)
    assert ticket.id in {again.id for again in lease(ledger)}
    traces.moved([ticket.id])
    expected = [("ticket pending", 1), ("ticket leased", 1)]
    assert [span[1:] for span in spans if span[0] == parent] == expected
    finish(ledger, [ticket])
    traces.moved([ticket.id])
    assert [span[1:] for span in spans if span[0] == parent] == [*expected, ("ticket leased", 2)]
