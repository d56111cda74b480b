"""The ledger and its program, case by case."""

from __future__ import annotations

import dataclasses
import math

import pytest

from earl.errors import LedgerError, UnknownWorker
from earl.ticket_ranges import RangeSet
from services.scheduler.ledger import phases
from services.scheduler.ledger.evaluation import wins
from services.scheduler.ledger.ledger import HANDOUTS, Ledger
from services.scheduler.ledger.reconcile import reconcile
from services.scheduler.monitor.step_clock import Doing, StepWork
from services.scheduler.state.facts import BatchCommitted
from services.scheduler.state.rules import Rules
from services.scheduler.state.run import Batch
from services.scheduler.state.stored import encode
from services.scheduler.state.tickets import (
    Attempt,
    EpisodeEnding,
    EpisodeResult,
    Purpose,
    Reason,
    Ticket,
    TicketState,
    TicketVerdict,
)
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES, Image, check_tables, ids_of

TRAIN_ONLY = dataclasses.replace(RULES, warmup_batches=0, evaluation_episodes=0)


def begun(rules: Rules = TRAIN_ONLY, version: int = 1, **rules_changed) -> Ledger:
    """A ledger whose trainer has reconciled at `version`, with one rollout worker "w"."""
    ledger = Ledger(dataclasses.replace(rules, **rules_changed))
    ledger.membership.join(WorkerRecord(name="w", incarnation=1), 0.0)
    ledger.membership.join(WorkerRecord(name="t", incarnation=1), 0.0)
    reconcile(ledger, "t", 1, version, 1, RangeSet())
    ledger.membership.mark_alive("w", 1, 0.0, version)
    phases.advance(ledger, 0.0)
    return ledger


def attempt(ticket: Ticket) -> Attempt:
    return Attempt(ticket.id, ticket.attempt, ticket.fence)


def result(ledger: Ledger, **fields) -> EpisodeResult:
    version = ledger.tables.run.version
    return EpisodeResult(
        **{
            "total_tokens": 9, "trained_tokens": 4, "oldest_version": version, "newest_version": version,
            "descriptor_key": "k", **fields,
        }
    )  # fmt: skip


def lease(ledger: Ledger, credit: int = 100, now: float = 0.0) -> list[Ticket]:
    return ledger.lease("w", 1, credit, now)


def finish(ledger: Ledger, tickets: list[Ticket], **fields) -> list[tuple[TicketVerdict, str]]:
    return [
        ledger.attempts.complete(
            "w", 1, attempt(one), result(ledger, **{"descriptor_key": f"k{one.id}/{one.attempt}", **fields})
        )
        for one in tickets
    ]


def batch_of(ledger: Ledger) -> Batch:
    batch = phases.next_batch(ledger, 0.0)
    assert batch is not None
    return batch


def train(ledger: Ledger) -> None:
    finish(ledger, lease(ledger))
    batch = batch_of(ledger)
    ledger.commit(batch.id, batch.version + 1)
    phases.advance(ledger, 0.0)


def test_groups_share_the_environments_seed_and_differ_in_the_samplers() -> None:
    tickets = lease(begun())
    groups = {ticket.group: [one for one in tickets if one.group == ticket.group] for ticket in tickets}
    assert len(groups) == 4  # (staleness + 1) batches of 2 groups
    for members in groups.values():
        assert len({one.env_seed for one in members}) == 1 and len({one.sample_seed for one in members}) == 2


def test_a_large_window_is_issued_in_slices_of_whole_groups() -> None:
    ledger = begun(batch_groups=200)
    assert len(ledger.tables.groups[Purpose.TRAIN]) == phases.ISSUED_AT_ONCE // 2
    while phases.advance(ledger, 0.0):
        pass
    places = [ledger.tables.place(Purpose.TRAIN, group) for group in ledger.tables.groups[Purpose.TRAIN]]
    assert places == list(range(400))
    targets = [ledger.tables.tickets[number].min_version for number in sorted(ledger.tables.tickets)]
    assert targets == [1] * 800  # of version 1 and 2, which may be one version old


def test_a_version_that_was_rolled_back_is_not_sampled_from() -> None:
    ledger = begun(version=2)
    tickets = lease(ledger, credit=2)
    ledger.membership.mark_alive("w", 1, 0.0, 3)
    assert lease(ledger) == []
    refused = (TicketVerdict.RETRIED, "version 3 was rolled back to 2")
    assert finish(ledger, tickets, newest_version=3) == [refused, refused]
    ledger.membership.mark_alive("w", 1, 0.0, 2)
    assert lease(ledger)


def test_attempts_run_out_and_the_group_is_replaced_by_another() -> None:
    ledger = begun()
    first = lease(ledger)[0]
    seeds = {ticket.env_seed for ticket in ledger.tables.tickets.values()}
    for number in range(3):
        verdict, reason = ledger.attempts.complete(
            "w", 1, attempt(first), result(ledger, ending=EpisodeEnding.INFRA_ERROR, message="gone")
        )
        assert (verdict, reason) == (TicketVerdict.RETRIED, "infra_error: gone")
        if number < 2:
            first = next(one for one in lease(ledger) if one.id == first.id)
            assert first.attempt == number + 2
    assert ledger.tables.counts()["dropped:group_incomplete"] == 2
    phases.advance(ledger, 0.0)
    assert len(ledger.tables.groups[Purpose.TRAIN]) == 4
    assert len({ticket.env_seed for ticket in ledger.tables.tickets.values()}) == len(seeds) + 1
    sibling = next(
        one for one in ledger.tables.tickets.values() if one.group == first.group and one is not first
    )
    verdict, reason = ledger.attempts.complete("w", 1, attempt(sibling), result(ledger))
    assert verdict is TicketVerdict.REFUSED and "group_incomplete" in reason


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_a_failure_not_a_zero(reward: float) -> None:
    ledger = begun()
    [ticket] = lease(ledger, 1)
    verdict, reason = ledger.attempts.complete("w", 1, attempt(ticket), result(ledger, reward=reward))
    assert verdict is TicketVerdict.RETRIED and str(reward) in reason
    assert ticket.state is TicketState.PENDING


def test_late_foreign_and_unknown_results_are_refused_with_their_reason() -> None:
    ledger = begun()
    [ticket] = lease(ledger, 1)
    old = attempt(ticket)
    ledger.expire(29.0)  # membership ends first: everything the worker held is tried again
    with pytest.raises(UnknownWorker, match="join"):
        lease(ledger)
    ledger.membership.join(WorkerRecord(name="w", incarnation=1), 30.0)
    ledger.membership.join(WorkerRecord(name="v", incarnation=1), 30.0)
    [again] = ledger.lease("v", 1, 1, 30.0)
    assert again is ticket and (again.attempt, again.fence > old.fence) == (2, True)
    refused = [
        ledger.attempts.complete("w", 1, old, result(ledger)),
        ledger.attempts.complete("v", 1, old, result(ledger)),
        ledger.attempts.complete("v", 1, Attempt(9999, 1, 1), result(ledger)),
    ]
    assert [verdict for verdict, _ in refused] == [TicketVerdict.REFUSED] * 3
    assert "not leased to w" in refused[0][1] and "fence" in refused[1][1] and "unknown" in refused[2][1]
    assert ledger.attempts.complete("v", 1, attempt(again), result(ledger)) == (TicketVerdict.ACCEPTED, "")
    assert ledger.attempts.complete("v", 1, attempt(again), result(ledger)) == (
        TicketVerdict.ACCEPTED,
        "",
    )  # said twice
    assert ledger.tables.counts()["ready"] == 1


def test_leases_are_renewed_up_to_the_episodes_bound() -> None:
    ledger = begun(membership_s=1e9)
    [ticket] = lease(ledger, 1)
    for now in range(20, 320, 20):
        assert ledger.renew("w", 1, [attempt(ticket)], float(now)) == []
        ledger.expire(float(now))
        assert ticket.state is TicketState.LEASED
    ledger.renew("w", 1, [attempt(ticket)], 329.0)
    ledger.expire(330.0)  # episode_s + lease_s after it began
    assert ticket.state is TicketState.PENDING
    assert ledger.renew("w", 1, [attempt(ticket)], 331.0) != []


def test_the_bound_of_an_episode_stands_still_while_engines_sleep() -> None:
    ledger = begun(membership_s=1e9)
    [ticket] = lease(ledger, 1)

    def renewed(first: int, last: int) -> None:
        for now in range(first, last, 20):
            assert ledger.renew("w", 1, [attempt(ticket)], float(now)) == []
            ledger.expire(float(now))
            assert ticket.state is TicketState.LEASED

    renewed(20, 100)
    ledger.attempts.stand_still(True, 100.0)
    renewed(100, 1100)
    ledger.attempts.stand_still(True, 500.0)  # it does already
    ledger.attempts.stand_still(False, 1100.0)
    renewed(1100, 1320)
    ledger.renew("w", 1, [attempt(ticket)], 1329.0)
    ledger.expire(1330.0)  # episode_s + lease_s, and the thousand seconds
    assert ticket.state is TicketState.PENDING


def test_evaluations_that_fail_are_counted_and_seeds_are_the_same_at_start_and_end() -> None:
    ledger = begun(RULES, warmup_batches=0, steps=1, evaluate_every_steps=0)
    seeds = []
    for failing in (0, 1):
        tickets = lease(ledger)
        seeds.append([(one.env_seed, one.sample_seed) for one in tickets])
        finish(ledger, tickets[failing:], metrics={"win": 1.0, "illegal": 0.5})
        for _ in range(3 * failing):
            bad = next(one for one in [*tickets, *lease(ledger)] if one.state is TicketState.LEASED)
            ledger.attempts.complete("w", 1, attempt(bad), result(ledger, ending=EpisodeEnding.TIMEOUT))
        if not failing:
            phases.advance(ledger, 0.0)
            train(ledger)
    assert seeds[0] == seeds[1] and len(seeds[0]) == 3
    final = ledger.tables.evaluations["final"]
    assert (final.done, final.failed, final.finished, wins(final)[1:]) == (2, 1, True, [1.0, 1.0])
    assert final.metrics == {"win": 1.0, "illegal": 0.5, "failed": pytest.approx(1 / 3)}
    assert ledger.tables.counts()["dropped:evaluation_failed"] == 1
    assert phases.phase(ledger) == phases.DONE


def test_a_planned_batch_stays_the_same_until_it_is_committed_and_a_commit_may_be_repeated() -> None:
    ledger = begun()
    finish(ledger, lease(ledger))
    batch = batch_of(ledger)
    assert batch_of(ledger) is batch
    with pytest.raises(LedgerError, match="not the planned one"):
        ledger.commit(batch.id + 1, 2)
    with pytest.raises(LedgerError, match="version"):
        ledger.commit(batch.id, 5)
    assert ledger.commit(batch.id, 2) is not None
    assert ledger.commit(batch.id, 2) is None
    assert ledger.tables.counts()["trained"] == 4 and ledger.tables.run.version == 2


def test_what_becomes_of_a_batch_is_stored_with_the_batch_and_not_with_each_of_its_tickets() -> None:
    ledger, image = begun(), Image()
    finish(ledger, lease(ledger))
    image.apply(ledger.tables.take_changes())
    batch = batch_of(ledger)

    def stored() -> set[str]:
        changes = ledger.tables.take_changes()
        image.apply(changes)
        again = Ledger.restored(ledger.rules, image.peek(), 0.0).tables
        assert again.tickets == ledger.tables.tickets and again.counts() == ledger.tables.counts()
        return {one.field for one in changes.records if one.kind == "ticket"}

    assert stored() == set()
    assert ledger.tables.counts()["planned"] == len(batch.tickets) == 4
    ledger.commit(batch.id, 2)
    assert stored() == set()
    assert ledger.tables.counts()["trained"] == 4
    consumed = RangeSet.of(batch.tickets[:3])
    assert ledger.record_checkpoint(consumed, 2) and len(stored()) == 2
    assert not ledger.record_checkpoint(consumed, 2) and len(stored()) == 1
    assert not ledger.record_checkpoint(consumed) and stored() == set()
    assert ids_of(ledger.tables, "trained") == RangeSet.of(batch.tickets)
    reconcile(ledger, "t", 1, 1, 1, RangeSet())
    assert str(batch.tickets[3]) in stored()
    assert ledger.tables.counts()["dropped:rolled_back"] == 4


def test_an_issued_group_is_one_record_until_all_its_tickets_were_leased() -> None:
    ledger, image = begun(group_size=3, transcripts=2), Image()

    def stored() -> dict[str, set[str]]:
        image.apply(ledger.tables.take_changes())
        again = Ledger.restored(ledger.rules, image.peek(), 0.0)
        assert again.tables.tickets == ledger.tables.tickets and again.tables.issues == ledger.tables.issues
        assert again.tables.counts() == ledger.tables.counts() and again.tables.groups == ledger.tables.groups
        assert len(again.tables.pending) == len(ledger.tables.pending)
        return {kind: {name for of, name in image.records if of == kind} for kind in ("ticket", "group")}

    groups = {str(group) for group in ledger.tables.groups[Purpose.TRAIN]}
    assert stored() == {"ticket": set(), "group": groups} and len(groups) == 4
    assert any(ticket.transcript for ticket in ledger.tables.tickets.values())
    leased = lease(ledger, 4)
    assert stored() == {"ticket": {"1", "2", "3", "4"}, "group": groups - {"1"}}
    ledger.attempts.drop_group(Purpose.TRAIN, 2, Reason.TOO_STALE)
    finish(ledger, leased)
    assert stored() == {"ticket": {"1", "2", "3", "4", "5", "6"}, "group": groups - {"1", "2"}}
    ledger.record_checkpoint(RangeSet())  # what was dropped is in no record any more
    assert stored() == {"ticket": {"1", "2", "3"}, "group": groups - {"1", "2"}}
    assert ledger.tables.counts()["dropped:too_stale"] == 3


def test_a_group_of_which_some_are_closed_keeps_only_those_that_were_never_leased() -> None:
    ledger, image = begun(group_size=3), Image()
    consumed = RangeSet.of([1])  # of a manifest that knows more than the ledger
    reconcile(ledger, "t", 1, 2, 2, consumed)
    ledger.record_checkpoint(consumed)
    image.apply(ledger.tables.take_changes())
    again = Ledger.restored(ledger.rules, image.peek(), 0.0).tables
    assert again.tickets == ledger.tables.tickets and again.counts() == ledger.tables.counts()


def test_tickets_that_were_stored_one_by_one_keep_their_records() -> None:
    ledger, image = begun(), Image()
    image.apply(ledger.tables.take_changes())
    for number, ticket in ledger.tables.tickets.items():
        image.records["ticket", str(number)] = encode(ticket)
    image.records = {key: data for key, data in image.records.items() if key[0] != "group"}
    again = Ledger.restored(ledger.rules, image.peek(), 0.0)
    assert not again.tables.issues and again.tables.tickets == ledger.tables.tickets
    finish(again, lease(again))
    image.apply(again.tables.take_changes())
    assert Ledger.restored(ledger.rules, image.peek(), 0.0).tables.tickets == again.tables.tickets


def test_a_ledger_that_stored_every_state_with_its_ticket_goes_on() -> None:
    ledger, image = begun(), Image()
    finish(ledger, lease(ledger))
    batch = batch_of(ledger)
    image.apply(ledger.tables.take_changes())
    for number in batch.tickets:
        head, _, body = image.records["ticket", str(number)].partition(b"|")
        image.records["ticket", str(number)] = head.replace(b"ready", b"planned") + b"|" + body
    again = Ledger.restored(ledger.rules, image.peek(), 0.0)
    again.commit(batch.id, 2)
    image.apply(again.tables.take_changes())
    assert Ledger.restored(ledger.rules, image.peek(), 0.0).tables.tickets == again.tables.tickets


def test_an_arena_that_is_lost_after_planning_is_only_missed_if_the_trainer_asks_again() -> None:
    ledger = begun()
    finish(ledger, lease(ledger))
    batch = batch_of(ledger)
    ledger.membership.join(WorkerRecord(name="w", incarnation=2), 0.0)
    assert ledger.tables.counts()["planned"] == 4
    assert ledger.tables.counts()["pending"] == 4  # what was ready went with the arena
    unread = Ledger.restored(
        ledger.rules, [(c.kind, c.field, c.data) for c in ledger.tables.take_changes().records if c.data], 0.0
    )
    assert ledger.commit(batch.id, 2) is not None  # it had been read
    assert phases.next_batch(unread, 0.0) is None  # it had not
    assert unread.tables.counts()["pending"] == 8
    with pytest.raises(LedgerError):
        unread.commit(batch.id, 2)


def test_a_batch_that_is_asked_for_again_and_again_is_given_up() -> None:
    ledger = begun()
    finish(ledger, lease(ledger))
    batch = batch_of(ledger)
    for _ in range(HANDOUTS + 1):
        assert phases.next_batch(ledger, 0.0) is batch  # whose worker is gone may not be known yet
    ledger.tables.now = ledger.membership.membership_s + 1.0
    assert phases.next_batch(ledger, 0.0) is not batch
    tickets = [ledger.tables.tickets[number] for number in batch.tickets]
    assert {ticket.state for ticket in tickets} == {TicketState.PENDING}


def test_a_retry_never_becomes_staler_than_its_first_try() -> None:
    ledger = begun(staleness=2, steps=20)
    train(ledger)
    ledger.commit(batch_of(ledger).id, 3)
    ledger.membership.mark_alive("w", 1, 0.0, 3)
    ticket = lease(ledger, 1)[0]
    assert (ticket.min_version, ticket.floor) == (2, 3)
    ledger.attempts.complete("w", 1, attempt(ticket), result(ledger, ending=EpisodeEnding.INFRA_ERROR))
    assert ticket.min_version == 3


@pytest.mark.parametrize(("staleness", "oldest"), [(0, [1, 1]), (1, [1, 1, 1, 1]), (2, [1] * 6)])
def test_minimum_versions_at_start(staleness: int, oldest: list[int]) -> None:
    ledger = begun(staleness=staleness)
    groups = {ticket.group: ticket.min_version for ticket in ledger.tables.tickets.values()}
    assert list(groups.values()) == oldest
    train(ledger)
    newest = [one.min_version for one in ledger.tables.tickets.values() if one.state is TicketState.PENDING]
    assert set(newest) == {2}  # made for the batch `staleness` versions ahead


def test_what_is_dropped_is_freed_with_the_next_commit() -> None:
    ledger = begun()
    tickets = lease(ledger)
    finish(ledger, tickets[1:])
    for _ in range(3):
        ledger.attempts.complete("w", 1, attempt(tickets[0]), result(ledger, ending=EpisodeEnding.ENV_ERROR))
        lease(ledger)
    dropped = f"k{tickets[1].id}/1"
    assert ledger.tables.freed == [dropped]
    batch = batch_of(ledger)
    ledger.commit(batch.id, 2)
    [fact] = [one for one in ledger.tables.take_changes().facts if isinstance(one, BatchCommitted)]
    assert dropped in fact.descriptor_keys and len(fact.descriptor_keys) == 5 and ledger.tables.freed == []


def test_a_checkpoint_compacts_and_an_older_manifest_takes_it_back() -> None:
    ledger = begun()
    train(ledger)
    held = ids_of(ledger.tables, "trained")
    train(ledger)
    ledger.record_checkpoint(ids_of(ledger.tables, "trained"))
    assert ledger.tables.closed["trained"] == RangeSet([(1, 9)]) and len(ledger.tables.tickets) == 8
    ledger.membership.join(WorkerRecord(name="t", incarnation=2), 0.0)
    assert reconcile(ledger, "t", 2, 2, 2, held) == 4
    check_tables(ledger.tables)
    # Four trained ones, and four that were issued for a version which is not the next any more.
    assert ids_of(ledger.tables, "trained") == held and ledger.tables.counts()["dropped:rolled_back"] == 8
    assert phases.step(ledger) == (1, 4)
    with pytest.raises(LedgerError, match="Reconcile"):
        ledger.require_trainer("w", 1, 0.0)


def test_a_manifest_that_was_renamed_before_the_commit_counts() -> None:
    ledger = begun()
    finish(ledger, lease(ledger))
    batch = batch_of(ledger)
    ledger.membership.join(WorkerRecord(name="t", incarnation=2), 0.0)
    assert reconcile(ledger, "t", 2, 2, batch.id + 1, RangeSet.of(batch.tickets)) == 0
    assert ledger.tables.counts() == {"trained": 4, "ready": 4}
    assert ledger.commit(batch.id, 2) is None
    freed = [one for one in ledger.tables.take_changes().facts if isinstance(one, BatchCommitted)]
    assert len(freed[0].descriptor_keys) == 4


def test_a_store_that_was_lost_is_rebuilt_from_the_manifest() -> None:
    ledger = Ledger(RULES)
    phases.advance(ledger, 0.0)  # warm-up tickets 1 to 6 are out
    ledger.membership.join(WorkerRecord(name="t", incarnation=1), 0.0)
    reconcile(ledger, "t", 1, 5, 7, RangeSet([(1, 7), (10, 20)]))
    phases.advance(ledger, 0.0)
    check_tables(ledger.tables)
    counts = ledger.tables.counts()
    assert counts["trained"] == 16 and counts["dropped:forgotten"] == 3
    assert phases.phase(ledger) == phases.TRAIN and phases.step(ledger) == (2, 4)
    assert min(one.id for one in ledger.tables.tickets.values() if one.state is TicketState.PENDING) == 20


def test_the_time_limit_ends_training_at_a_boundary() -> None:
    ledger = begun(train_limit_s=10.0)
    finish(ledger, lease(ledger))
    batch = phases.next_batch(ledger, 9.0)
    assert batch is not None and batch.progress == pytest.approx(0.9)
    phases.advance(ledger, 11.0)
    assert phases.phase(ledger) == phases.TRAIN  # the batch in hand is still trained
    ledger.commit(batch.id, 2)
    phases.advance(ledger, 11.0)
    assert phases.phase(ledger) == phases.DONE
    counts = ledger.tables.counts()
    assert counts == {"trained": 4, "dropped:phase_over": 4}


def test_warm_up_runs_ahead_without_a_trainer_and_trains_all_of_it() -> None:
    ledger = Ledger(dataclasses.replace(RULES, warmup_batches=6))
    ledger.membership.join(WorkerRecord(name="w", incarnation=1), 0.0)
    phases.advance(ledger, 0.0)
    tickets = lease(ledger)
    assert len(tickets) == 4 * 3 and {one.min_version for one in tickets} == {0}
    assert phases.next_batch(ledger, 0.0) is None  # nobody has said from which version
    ledger.membership.join(WorkerRecord(name="t", incarnation=1), 0.0)
    reconcile(ledger, "t", 1, 1, 1, RangeSet())
    finish(ledger, tickets)
    batches = []
    while phases.phase(ledger) == phases.WARMUP:
        batch = batch_of(ledger)
        batches.append(batch)
        ledger.commit(batch.id, batch.version + 1)
        phases.advance(ledger, 0.0)
        finish(ledger, [one for one in lease(ledger) if one.purpose is Purpose.WARMUP])
    assert len(batches) == 6 and [one.publish for one in batches] == [False] * 5 + [True]
    assert ledger.tables.counts()["trained"] == 18


def test_a_worker_that_goes_hands_back_and_its_tickets_lose_no_attempt():
    ledger = begun(attempts=2)
    finished, *running = lease(ledger)
    finish(ledger, [finished])
    for _ in range(3):
        ledger.membership.leave("w", "drained", drained=True)
        assert {ledger.tables.tickets[one.id].state for one in (finished, *running)} == {TicketState.PENDING}
        assert ledger.tables.tickets[finished.id].result is None, "its columns went with the arena"
        assert not any(ledger.tables.tickets[one.id].failures for one in (finished, *running))
        ledger.membership.join(WorkerRecord(name="w", incarnation=1, version=1), 0.0)
        finished, *running = lease(ledger)
    assert set(ledger.tables.counts()) == {"leased"}
    check_tables(ledger.tables)
    assert finish(ledger, [finished])[0][0] is TicketVerdict.ACCEPTED


def test_a_repeated_report_is_accepted_wherever_its_ticket_went_since() -> None:
    """A worker whose answer was lost reports again. Told that it was refused, it would free columns that the
    planned batch is about to read."""
    ledger = begun()
    tickets = lease(ledger)
    reports = [(attempt(ticket), result(ledger)) for ticket in tickets]

    def reported_again(state: TicketState) -> None:
        verdicts = {
            ledger.attempts.complete("w", 1, *report)
            for report, ticket in zip(reports, tickets, strict=True)
            if ticket.state is state
        }
        assert verdicts == {(TicketVerdict.ACCEPTED, "")}, state

    assert {ledger.attempts.complete("w", 1, *report) for report in reports} == {(TicketVerdict.ACCEPTED, "")}
    reported_again(TicketState.READY)
    batch = batch_of(ledger)
    reported_again(TicketState.PLANNED)
    ledger.commit(batch.id, batch.version + 1)
    reported_again(TicketState.TRAINED)
    # Of another attempt it is refused all the same.
    other = Attempt(tickets[0].id, tickets[0].attempt + 1, tickets[0].fence)
    assert ledger.attempts.complete("w", 1, other, result(ledger))[0] is TicketVerdict.REFUSED


# --- how far a step is ----------------------------------------------------------------------


def test_a_step_is_played_then_trained_and_an_evaluation_is_waited_for() -> None:
    ledger = begun(staleness=0, evaluation_episodes=3, evaluate_at_start=False, evaluate_every_steps=1)
    assert phases.work(ledger) == StepWork(Doing.PLAYING, 1, 4, Purpose.TRAIN)
    tickets = lease(ledger)
    finish(ledger, tickets[:3])
    assert phases.episodes_played(ledger) == 3
    finish(ledger, tickets[3:])
    batch = batch_of(ledger)
    assert phases.work(ledger) == StepWork(Doing.TRAINING, 1, 4, Purpose.TRAIN)
    ledger.commit(batch.id, 2)
    phases.advance(ledger, 0.0)
    assert phases.work(ledger) == StepWork(Doing.EVALUATING, 2, 2, Purpose.EVALUATE)
    finish(ledger, [one for one in lease(ledger) if one.purpose is Purpose.EVALUATE][:1], descriptor_key="")
    assert phases.episodes_evaluated(ledger) == 1


def test_nothing_is_known_of_a_step_before_a_trainer_is_there() -> None:
    ledger = Ledger(RULES)
    phases.advance(ledger, 0.0)
    assert phases.work(ledger) is None
    assert phases.work(begun(RULES)) == StepWork(Doing.PLAYING, 1, 3, Purpose.WARMUP)


def test_groups_that_went_ahead_count_unless_others_may_not_wait() -> None:
    ledger = begun()
    tickets = lease(ledger)
    groups = sorted({one.group for one in tickets})
    ahead = [one for one in tickets if one.group in groups[2:]]
    finish(ledger, ahead[:3])
    assert phases.episodes_played(ledger) == 3
    finish(ledger, ahead[3:])
    assert phases.episodes_played(ledger) == 4
    batch = batch_of(ledger)
    ledger.commit(batch.id, 2)
    phases.advance(ledger, 0.0)
    finish(ledger, lease(ledger))
    # The first two groups began at version 1: no batch of version 2 may be without them.
    assert phases.episodes_played(ledger) == 0 and phases.next_batch(ledger, 0.0) is None


def test_warm_up_counts_the_next_batch_alone() -> None:
    ledger = begun(RULES)
    tickets = lease(ledger)
    assert len(tickets) == 6
    finish(ledger, tickets[2:])
    assert phases.episodes_played(ledger) == 1


def test_what_was_leased_in_an_answer_that_was_lost_is_leased_anew_at_once() -> None:
    ledger = begun()
    first = lease(ledger, 2)
    newest = first[-1].fence
    ids = [ticket.id for ticket in first]
    lost = [ticket.id for ticket in ledger.lease("w", 1, 3, 0.0, newest)]
    # The worker has the first two, and not what came with the second answer.
    again = ledger.lease("w", 1, 3, 0.0, newest)
    assert [ticket.id for ticket in again] == lost
    assert all(ticket.attempt == 2 and ticket.failures == 0 and ticket.fence > newest for ticket in again)
    assert [verdict for verdict, _ in finish(ledger, first)] == [TicketVerdict.ACCEPTED] * 2
    # It has all of them now: none is taken from it.
    newest = again[-1].fence
    more = ledger.lease("w", 1, 1, 0.0, newest)
    assert [ledger.tables.tickets[number].state for number in lost] == [TicketState.LEASED] * 3
    assert more[0].id not in {*ids, *lost}
    # A call that is late knows less than a later one has told.
    ledger.lease("w", 1, 0, 0.0, first[-1].fence)
    assert ledger.tables.tickets[more[0].id].state is TicketState.LEASED
    # A worker that does not say what it has keeps all.
    lease(ledger, 1)
    assert ledger.tables.tickets[more[0].id].state is TicketState.LEASED


def test_a_ledger_that_starts_again_leases_anew_what_its_last_answer_had() -> None:
    ledger, image = begun(), Image()
    newest = lease(ledger, 1)[0].fence
    lost = [ticket.id for ticket in lease(ledger, 2)]
    image.apply(ledger.tables.take_changes())
    again = Ledger.restored(ledger.rules, image.load(), 0.0)
    assert [ticket.id for ticket in again.lease("w", 1, 2, 0.0, newest)] == lost
