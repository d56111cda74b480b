"""Incarnations: a worker that was given up for dead and replaced has no way back."""

from __future__ import annotations

import dataclasses

import pytest

from earl.errors import UnknownWorker, WorkerReplaced
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.membership import FORMER_NAMES, INCARNATIONS
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES, Image


def member(incarnation: int, name: str = "w") -> WorkerRecord:
    return WorkerRecord(name=name, incarnation=incarnation)


def test_one_that_was_replaced_cannot_evict_its_successor() -> None:
    ledger = Ledger(RULES)
    ledger.membership.join(member(7), 0.0)
    ledger.membership.join(member(3), 1.0)
    for call in (lambda: ledger.membership.join(member(7), 2.0), lambda: ledger.lease("w", 7, 1, 2.0)):
        with pytest.raises(WorkerReplaced, match=r"w \(7\) was replaced by \(3\)"):
            call()
    assert ledger.tables.workers["w"].incarnation == 3
    ledger.membership.join(member(3), 3.0)  # said again: its answer was lost


def test_a_silent_worker_may_come_back_until_another_took_its_place() -> None:
    ledger = Ledger(RULES)
    ledger.membership.join(member(7), 0.0)
    ledger.expire(RULES.membership_s + 1)
    with pytest.raises(UnknownWorker, match="join"):
        ledger.membership.mark_alive("w", 7, 20.0)
    ledger.membership.join(member(7), 20.0)
    ledger.expire(20.0 + RULES.membership_s + 1)
    ledger.membership.join(member(8), 60.0)
    ledger.expire(60.0 + RULES.membership_s + 1)  # the successor is silent, too
    with pytest.raises(WorkerReplaced):
        ledger.membership.join(member(7), 90.0)
    ledger.membership.join(member(7, "another"), 90.0)  # other names have lives of their own


def test_a_large_fleet_is_asked_less_often_and_may_be_silent_for_longer() -> None:
    rules = dataclasses.replace(RULES, heartbeat_s=1.0, heartbeats_per_s=10.0)
    ledger = Ledger(rules)
    ledger.membership.join(member(1, "first"), 0.0)
    assert (ledger.membership.heartbeat_s, ledger.membership.membership_s) == (1.0, rules.membership_s)
    for number in range(99):
        ledger.membership.join(member(1, f"w{number}"), 0.0)
    assert (ledger.membership.heartbeat_s, ledger.membership.membership_s) == (10.0, 30.0)
    ledger.membership.mark_alive("first", 1, 1.0)
    for number in range(99):
        ledger.membership.leave(f"w{number}", "left")
    # What it was told once holds: the next sign of life does not shorten it.
    ledger.membership.mark_alive("first", 1, 2.0)
    ledger.expire(30.5)
    assert "first" in ledger.tables.workers
    image = Image()
    image.apply(ledger.tables.take_changes())
    again = Ledger.restored(rules, image.load(), 30.0)
    again.expire(60.0 - 0.5)  # nor does a scheduler that finds a small fleet
    assert "first" in again.tables.workers
    ledger.expire(31.0)
    assert "first" not in ledger.tables.workers


def test_a_short_membership_is_kept_by_heartbeats_that_come_more_often() -> None:
    ledger = Ledger(dataclasses.replace(RULES, heartbeat_s=1.0, membership_s=1.5))
    assert (ledger.membership.heartbeat_s, ledger.membership.membership_s) == (0.5, 1.5)


def test_who_was_replaced_is_known_to_the_next_scheduler_and_bounded() -> None:
    image, ledger = Image(), Ledger(RULES)
    for incarnation in range(1, 3 * INCARNATIONS):
        ledger.membership.join(member(incarnation), 0.0)
    image.apply(ledger.tables.take_changes())
    restored = Ledger.restored(RULES, image.load(), 0.0)
    assert (
        restored.tables.incarnations == ledger.tables.incarnations
        and len(restored.tables.incarnations["w"].incarnations) == INCARNATIONS
    )
    with pytest.raises(WorkerReplaced):
        restored.membership.join(member(3 * INCARNATIONS - 2), 1.0)


def test_names_that_no_worker_has_are_forgotten_in_the_end() -> None:
    image, ledger = Image(), Ledger(RULES)
    ledger.membership.join(member(1, "stays"), 0.0)
    ledger.membership.join(member(2, "stays"), 0.0)
    for number in range(FORMER_NAMES + 8):
        ledger.membership.join(member(1, f"w{number}"), 0.0)
        image.apply(ledger.tables.take_changes())
        ledger.membership.leave(f"w{number}", "left")
    image.apply(ledger.tables.take_changes())
    restored = Ledger.restored(RULES, image.load(), 0.0)
    assert restored.tables.incarnations == ledger.tables.incarnations
    assert len(ledger.tables.incarnations) == 1 + FORMER_NAMES
    assert "w8" in ledger.tables.incarnations and "w7" not in ledger.tables.incarnations
    with pytest.raises(WorkerReplaced):
        restored.membership.join(member(1, "stays"), 1.0)
