"""Groups that are trained again: which, how often, until when, and across a roll-back."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from earl.ticket_ranges import RangeSet
from services.scheduler.ledger import phases
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.state.replay_groups import ReplayGroup
from services.scheduler.state.run import Batch
from services.scheduler.state.tickets import Attempt, EpisodeResult, Purpose, Ticket, TicketState
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES, Image, check_tables, ids_of

REPLAY: dict[str, Any] = {
    "replay_reuse": 2, "replay_age": 8, "replay_groups": 4, "replay_capacity": 16, "replay_order": "fifo",
}  # fmt: skip
RULE = dataclasses.replace(
    RULES, warmup_batches=0, evaluation_episodes=0, staleness=0, steps=20, checkpoint_every=0, **REPLAY
)


def begun(**changed: Any) -> Ledger:
    """A ledger whose trainer has reconciled at version 1, with one worker "w". A batch is 2 groups of 2."""
    ledger = Ledger(dataclasses.replace(RULE, **changed))
    for name in ("w", "t"):
        ledger.membership.join(WorkerRecord(name=name, incarnation=1), 0.0)
    reconcile(ledger, "t", 1, 1, 1, RangeSet())
    return ledger


def planned(ledger: Ledger, rewards: tuple[float, float] = (0.0, 1.0)) -> Batch:
    """Plays what the next batch needs, and plans it. rewards: of the members of each group."""
    version = ledger.tables.run.version
    phases.advance(ledger, 0.0)
    ledger.membership.mark_alive("w", 1, 0.0, version)
    for place, ticket in enumerate(ledger.lease("w", 1, 100, 0.0)):
        result = EpisodeResult(
            reward=rewards[place % 2], total_tokens=9, trained_tokens=4, oldest_version=version,
            newest_version=version, descriptor_key=f"w#{ticket.id}/1", turn_tokens=[9], metrics={"win": 1.0},
        )  # fmt: skip
        ledger.attempts.complete("w", 1, Attempt(ticket.id, ticket.attempt, ticket.fence), result)
    batch = phases.next_batch(ledger, 0.0)
    assert batch is not None
    return batch


def train(ledger: Ledger, rewards: tuple[float, float] = (0.0, 1.0)) -> Batch:
    batch = planned(ledger, rewards)
    assert ledger.commit(batch.id, batch.version + 1) is not None
    check_tables(ledger.tables)
    return batch


def sources(ledger: Ledger, batch: Batch) -> list[int]:
    return [ledger.tables.tickets[number].source for number in batch.replays]


def trained(ledger: Ledger) -> RangeSet:
    return ids_of(ledger.tables, "trained") | ids_of(ledger.tables, "replayed")


def numbers(groups: list[ReplayGroup]) -> set[int]:
    return {group.group for group in groups}


def evicted(ledger: Ledger) -> dict[str, float]:
    figures = ledger.replay.figures()
    return {name: value for name, value in figures.items() if name.startswith("replay_evicted.") and value}


def test_a_group_is_trained_again_as_often_as_it_may_be_each_time_by_tickets_of_its_own() -> None:
    ledger = begun()
    first = train(ledger)
    assert first.replays == []
    second = planned(ledger)
    assert sources(ledger, second) == first.tickets and not set(second.replays) & set(first.tickets)
    for number in second.replays:
        ticket = ledger.tables.tickets[number]
        source = ledger.tables.tickets[ticket.source]
        assert (ticket.purpose, ticket.state) == (Purpose.REPLAY, TicketState.PLANNED)
        assert (ticket.attempt, ticket.env_seed, ticket.seat) == (
            source.attempt,
            source.env_seed,
            source.seat,
        )
        assert ticket.result is not None and ticket.result.descriptor_key == f"w#{source.id}/1"
        assert ticket.result.metrics == {} and ticket.result.turn_tokens == []
    assert ledger.tables.counts()["planned"] == 8
    committed = ledger.commit(second.id, 3)
    assert committed is not None and len(committed.results) == 4 == len(committed.replays)
    assert ledger.tables.counts()["replayed"] == 4 and ledger.tables.counts()["trained"] == 8
    third = train(ledger)
    assert evicted(ledger) == {"replay_evicted.used": 2.0}  # the first batch's groups
    fourth = train(ledger)
    assert sources(ledger, third) == [*first.tickets, *second.tickets]
    assert sources(ledger, fourth) == [*second.tickets, *third.tickets]
    check_tables(ledger.tables)


@pytest.mark.parametrize(("order", "taken"), [("fifo", [0, 1]), ("freshest", [1, 0])])
def test_the_order_decides_which_groups_come_first(order: str, taken: list[int]) -> None:
    ledger = begun(replay_order=order, replay_reuse=4, replay_groups=3)
    batches = [train(ledger), train(ledger)]
    third = planned(ledger)
    first, second = (batches[index].tickets for index in taken)
    assert sources(ledger, third) == [*first, *second[:2]]


def test_groups_go_by_age_and_by_number_and_one_without_a_signal_is_never_kept() -> None:
    ledger = begun(replay_age=1, replay_reuse=4)
    train(ledger)
    assert len(ledger.replay.kept) == 2 and evicted(ledger) == {}
    train(ledger)
    assert evicted(ledger) == {"replay_evicted.age": 2.0} and len(ledger.replay.kept) == 2
    ledger = begun(replay_capacity=3, replay_reuse=4, replay_groups=1)
    first = train(ledger)
    second = train(ledger)
    assert evicted(ledger) == {"replay_evicted.capacity": 1.0}
    assert ledger.replay.sources == RangeSet.of([*first.tickets[2:], *second.tickets])
    ledger = begun()
    train(ledger, rewards=(1.0, 1.0))
    assert ledger.replay.figures()["replay_groups"] == 0
    ledger = begun(replay_needs_signal=False)
    train(ledger, rewards=(1.0, 1.0))
    assert ledger.replay.figures()["replay_groups"] == 2


def test_a_batch_that_is_taken_apart_uses_nothing_up() -> None:
    ledger = begun()
    train(ledger)
    batch, before = planned(ledger), ledger.replay.kept
    ledger.dissolve()
    assert ledger.tables.counts()["dropped:batch_dissolved"] == 4 and ledger.replay.kept == before
    check_tables(ledger.tables)
    again = planned(ledger)
    assert sources(ledger, again) and not set(again.replays) & set(batch.replays)


def test_a_batch_that_only_the_manifest_knows_has_used_and_left_what_it_would_have() -> None:
    seen, unseen = begun(), begun()
    for ledger in (seen, unseen):
        train(ledger)
    train(seen)
    batch = planned(unseen)
    consumed = trained(unseen) | RangeSet.of([*batch.tickets, *batch.replays])
    reconcile(unseen, "t", 1, 3, batch.id + 1, consumed)
    assert unseen.replay.kept == seen.replay.kept and any(group.uses for group in seen.replay.kept)
    assert unseen.tables.counts()["replayed"] == 4 and unseen.tables.batch is None
    check_tables(unseen.tables)


def test_a_roll_back_brings_back_what_was_kept_then() -> None:
    ledger = begun(checkpoint_every=2, replay_reuse=1)
    train(ledger)
    train(ledger)  # the trainer is asked to write a checkpoint of version 3
    consumed, kept = trained(ledger), ledger.replay.kept
    train(ledger)  # whose replays are used up now, before the checkpoint is recorded
    assert len(kept) == 2 and not numbers(kept) & numbers(ledger.replay.kept)
    assert set(ledger.tables.replays) == numbers(kept) | numbers(ledger.replay.kept)
    assert all(ticket.id in ledger.replay.sources for group in kept for ticket in group.tickets)
    image = Image()
    image.apply(ledger.tables.take_changes())
    again = Ledger.restored(ledger.rules, image.peek(), 0.0)
    reconcile(again, "t", 1, 3, 3, consumed)
    assert again.replay.kept == kept
    check_tables(again.tables)
    ledger.record_checkpoint(consumed, version=3)  # it may be restored yet
    assert numbers(kept) < set(ledger.tables.replays)
    ledger.record_checkpoint(trained(ledger), version=4)  # and now no more
    assert set(ledger.tables.replays) == numbers(ledger.replay.kept)


def test_groups_of_which_a_file_is_lost_leave_the_batch_and_the_others_stay() -> None:
    ledger = begun()
    train(ledger)
    batch = planned(ledger)
    lost = batch.replays[1]
    ledger.lose_replays({lost, 4711, batch.tickets[0]})
    left = batch.replays
    assert len(left) == 2 and lost not in left and phases.next_batch(ledger, 0.0) is batch
    ledger.lose_replays({lost})  # repeated
    assert batch.replays == left and ledger.tables.counts()["dropped:columns_lost"] == 2
    assert evicted(ledger) == {"replay_evicted.lost": 1.0}
    assert ledger.commit(batch.id, batch.version + 1) is not None
    ledger.lose_replays(set(left))  # late
    assert ledger.tables.counts()["replayed"] == 2
    check_tables(ledger.tables)


def test_a_replay_is_nobodys_to_play() -> None:
    ledger = begun()
    train(ledger)
    batch = planned(ledger)
    ticket: Ticket = ledger.tables.tickets[batch.replays[0]]
    verdict, reason = ledger.attempts.complete(
        "w", 1, Attempt(ticket.id, ticket.attempt, ticket.fence + 1), EpisodeResult()
    )
    assert verdict == "refused" and "not leased" in reason
    ledger.membership.leave("w", "gone")
    assert batch.lost == batch.tickets and ticket.state is TicketState.PLANNED


def test_a_run_that_no_longer_replays_forgets_what_was_kept() -> None:
    ledger, image = begun(), Image()
    train(ledger)
    image.apply(ledger.tables.take_changes())
    again = Ledger.restored(dataclasses.replace(RULE, replay_reuse=0, replay_groups=0), image.peek(), 0.0)
    assert len(again.tables.replays) == 2
    batch = train(again)
    assert batch.replays == [] and not again.tables.replays and again.replay.figures() == {}
