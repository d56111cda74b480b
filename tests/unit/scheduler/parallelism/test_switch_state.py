"""Checks which commands follow from the goal and from reports: lost, twice, late, refused, restarted."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import pytest

from earl.errors import IllegalParallelism, LedgerError
from earl.parallelism import Parallelism
from services.scheduler.state.switch_records import By
from tests.support.switching import (
    APART,
    OK,
    RETRY_S,
    ROLLED_BACK,
    STAGE,
    TOTAL_S,
    TP1,
    TP2,
    TP4,
    Reaction,
    World,
)


def figured(reaction: Reaction, **figures: float) -> Reaction:
    return dataclasses.replace(reaction, figures=dataclasses.replace(reaction.figures, **figures))


def test_a_switch_is_told_to_every_worker_and_ends_when_all_have_done_it() -> None:
    world = World(TP1, TP1)
    asked = world.ask(TP2)
    assert asked is not None and (asked.epoch, str(asked.former), str(asked.target)) == (1, "dp8", "dp4·tp2")
    first, second = world.commands()
    assert first.switch.parallelism == second.switch.parallelism == Parallelism(2, 2)
    assert {first.worker, second.worker} == {"w0", "w1"} and first.switch.epoch == second.switch.epoch == 1
    world.now += 2
    world.tell(first)
    assert world.commands() == [second] and not world.ended
    assert world.switching.target(STAGE) == Parallelism(4, 2) and world.switching.running(STAGE) is None
    world.now += 1
    world.tell(second, figured(OK, stall_s=0.7))
    assert not world.commands()
    [ended] = world.ended
    switch = ended.switch
    assert ended.stage == STAGE and not switch.rolled_back and not switch.message
    assert (switch.stall_s, switch.seconds, switch.sequences_continued, switch.moved_bytes) == (
        0.7,
        3.0,
        6,
        200,
    )
    assert switch.cost_s == pytest.approx((0.7 + 3.0) / 2) and world.stage.costs_s == [switch.cost_s]
    assert world.stage.last is switch and world.stage.switch is None and world.stage.replica == TP2
    assert world.image.facts[-1] == ended
    assert world.switching.running(STAGE) == Parallelism(4, 2)
    assert world.ask(TP2) is None  # it is cut so already


def test_the_same_command_is_told_until_it_is_answered() -> None:
    world = World(TP1)
    world.ask(TP2)
    [lost] = world.commands()
    [again] = world.commands()
    assert again == lost
    world.tell(again, lost=True)
    world.heartbeat(world.workers[0])  # it says that it has done it, and yet its answer is waited for
    [third] = world.commands()
    assert third == lost and not world.ended
    world.tell(third, ROLLED_BACK)  # known to it: it gives the outcome that it had
    world.commands()
    assert not world.ended[0].switch.rolled_back and world.ended[0].switch.stall_s == 0.5


def test_an_answer_that_comes_twice_or_too_late_changes_nothing() -> None:
    world = World(TP1, TP1)
    world.ask(TP2)
    first, second = world.commands()
    world.tell(first)
    world.answer(first, ROLLED_BACK)
    world.answer(first, OK)
    world.tell(second)
    world.commands()
    assert not world.ended[0].switch.rolled_back and world.ended[0].switch.sequences_continued == 6
    world.answer(second, APART)
    world.ask(TP4)
    world.answer(first, APART)
    world.obey()
    assert world.replicas() == [TP4, TP4] and not world.stage.bad


def test_a_heartbeat_of_before_the_answer_is_not_believed() -> None:
    world = World(TP1)
    world.ask(TP2)
    [command] = world.commands()
    before = dataclasses.replace(world.workers[0], known={})
    world.tell(command)
    world.heartbeat(before)
    assert world.switching.running(STAGE) == Parallelism(2, 2)
    world.obey()
    assert len({command.switch.epoch for command in world.told}) == 1


def test_if_one_worker_rolls_back_the_others_are_brought_back() -> None:
    world = World(TP1, TP1, TP1)
    world.ask(TP2, By.SELECTOR)
    one, other, third = world.commands()
    world.tell(one)
    world.tell(other, ROLLED_BACK)
    assert world.commands() == [third]  # in the middle of it: waited for
    world.tell(third)
    back = world.commands()
    assert [(command.worker, command.switch.epoch) for command in back] == [("w0", 2), ("w2", 2)]
    assert {command.switch.parallelism for command in back} == {Parallelism(4)}
    assert world.switching.target(STAGE) == Parallelism(12)
    world.obey()
    ended, mended = world.ended
    assert ended.switch.rolled_back and ended.switch.message == "w1: engines did not start"
    assert ended.switch.epoch == 1 and mended.switch.epoch == 2 and world.stage.costs_s == []
    assert mended.switch.by is By.REALIGN and world.stage.last is ended.switch
    assert world.replicas() == [TP1] * 3 and world.stage.replica == TP1
    # What failed is not chosen again for a while.
    assert world.switching.barred(STAGE, world.now) == {TP2: "w1: engines did not start"}
    assert not world.switching.barred(STAGE, world.now + RETRY_S + 1)
    assert not world.stage.bad


@pytest.mark.parametrize("difference", [0.5, math.nan, math.inf])
def test_a_layout_whose_log_probs_differ_is_bad_for_the_rest_of_the_run(difference: float) -> None:
    world = World(TP1)
    world.ask(TP2, By.SELECTOR)
    [command] = world.commands()
    world.tell(command, figured(APART, max_logprob_difference=difference))
    world.commands()
    assert world.ended[0].switch.rolled_back
    world.now += 1e6
    world.restart()
    assert world.switching.barred(STAGE, world.now).keys() == {TP2}
    with pytest.raises(LedgerError, match="tp2 is not used in this run again: log-probs are"):
        world.ask(TP2)
    world.ask(TP4)
    world.obey()
    assert world.replicas() == [TP4]


def test_what_a_worker_refuses_is_harmless() -> None:
    world = World(TP1, TP1)
    world.ask(TP2, By.SELECTOR)
    for command in world.commands():
        world.tell(command, "it cannot change its parallelism")
    assert not world.commands()
    [ended] = world.ended
    assert ended.switch.rolled_back and ended.switch.stall_s == 0
    assert ended.switch.message == (
        "w0: it cannot change its parallelism; w1: it cannot change its parallelism"
    )
    assert world.stage.replica == TP1 and TP2 in world.switching.barred(STAGE, world.now)


def test_no_answer_in_time_is_a_failure_and_heartbeats_tell_what_it_came_to() -> None:
    world = World(TP1, TP1)
    world.ask(TP2)
    first, second = world.commands()
    world.tell(first)
    world.tell(second, lost=True)
    world.now += TOTAL_S + 1
    back = world.commands()
    assert [command.worker for command in back] == ["w0"]  # what w1 is, nobody knows
    world.tell(back[0])
    world.commands()
    assert world.ended[0].switch.message == f"w1: no answer within {TOTAL_S:g} s"
    world.heartbeat(world.workers[1])
    [mended] = world.commands()
    assert mended.worker == "w1" and mended.switch.parallelism == Parallelism(4)
    world.obey()
    assert world.replicas() == [TP1, TP1]
    assert [one.switch.by for one in world.ended] == [By.OPERATOR, By.REALIGN, By.REALIGN]


def test_a_worker_lost_in_the_middle_takes_the_others_back() -> None:
    world = World(TP1, TP1)
    world.ask(TP2)
    first, second = world.commands()
    world.tell(first)
    world.lose(world.worker(second.worker))
    [back] = world.commands()
    assert back.worker == "w0" and back.switch.parallelism == Parallelism(4)
    world.workers[1].restart()
    world.join(world.workers[1])
    world.obey()
    assert world.replicas() == [TP1, TP1] and "w1: lost in the middle" in world.ended[0].switch.message


def test_a_worker_that_restarts_in_the_middle_is_a_new_one() -> None:
    world = World(TP1, TP1)
    world.ask(TP2)
    first, second = world.commands()
    world.workers[0].restart()
    world.join(world.workers[0])  # before its membership lapsed
    world.answer(first, OK)  # of its former life
    world.tell(second)
    world.obey()
    assert world.replicas() == [TP1, TP1] and world.ended[0].switch.rolled_back


def test_one_worker_alone_lost_in_the_middle() -> None:
    world = World(TP1)
    world.ask(TP2)
    world.commands()
    world.lose(world.workers[0])
    assert not world.commands() and world.ended[0].switch.rolled_back
    world.workers[0].restart()
    world.join(world.workers[0])
    world.obey()
    assert world.replicas() == [TP1] and len(world.ended) == 1


def test_who_joins_in_another_parallelism_is_told_the_stages() -> None:
    world = World(TP1, TP1)
    world.ask(TP4)
    world.obey()
    world.lose(world.workers[1])
    world.workers[1].restart()
    world.join(world.workers[1])
    [command] = world.commands()
    assert (
        command.worker == "w1"
        and command.switch.parallelism == Parallelism(1, 4)
        and command.switch.epoch == 2
    )
    assert "the parallelism of w1 differs from rollout's" in command.switch.reason
    world.tell(command)
    world.commands()
    assert world.ended[-1].switch.by is By.REALIGN and world.replicas() == [TP4, TP4]
    assert len(world.stage.costs_s) == 1  # of a switch of all of them alone


def test_who_joins_during_a_switch_takes_part_in_it() -> None:
    world = World(TP1, TP1)
    world.lose(world.workers[1])
    world.ask(TP2)
    [first] = world.commands()
    world.workers[1].restart()
    world.join(world.workers[1])
    assert [command.worker for command in world.commands()] == ["w0", "w1"]
    world.tell(first)
    world.obey()
    assert world.replicas() == [TP2, TP2] and len(world.ended) == 1


def test_who_cannot_be_mended_is_tried_again_ever_more_rarely() -> None:
    world = World(TP1, TP1)
    world.ask(TP2)
    world.obey()
    world.lose(world.workers[1])
    world.workers[1].restart()
    world.join(world.workers[1])
    tries = []
    for _ in range(400):
        for command in world.commands():
            tries.append(world.now)
            world.tell(command, "no room")
        world.now += 5
    pauses = [b - a for a, b in pairwise(tries)]
    assert pauses[:4] == pytest.approx([RETRY_S, 2 * RETRY_S, 4 * RETRY_S, 8 * RETRY_S], abs=11)
    assert max(pauses) <= 8 * RETRY_S + 11 and world.replicas() == [TP2, TP1]
    world.now += 10 * RETRY_S
    world.obey()
    assert world.replicas() == [TP2, TP2]


def test_where_nobody_can_be_mended_the_stage_is_what_its_workers_are() -> None:
    world = World(TP1)
    world.ask(TP2)
    world.obey()
    world.lose(world.workers[0])
    world.workers[0].restart()
    world.join(world.workers[0])
    [command] = world.commands()
    world.tell(command, "no room")
    world.now += 100 * RETRY_S
    assert not world.commands() and world.stage.replica == TP1
    world.switching.pin(STAGE, True)
    world.ask(TP2)
    world.obey()
    world.workers[0].restart()
    world.join(world.workers[0])
    [command] = world.commands()
    world.tell(command, "no room")
    world.commands()
    assert world.stage.replica == TP2  # what is pinned stays wanted
    world.now += 100 * RETRY_S
    world.obey()
    assert world.replicas() == [TP2]


@pytest.mark.parametrize("stored", [0, 1, 2, 3])
def test_a_scheduler_that_restarts_goes_on_where_it_was(stored: int) -> None:
    world = World(TP1, TP1)
    world.switching.pin(STAGE, True)
    world.ask(TP2)
    first, second = world.commands()
    if stored == 0:
        world.restart()
    world.tell(first)
    world.commands()
    if stored == 1:
        world.restart()
    world.tell(second, ROLLED_BACK, lost=stored == 2)
    if stored >= 2:
        world.image.apply(world.tables.take_changes())
        world.restart()
    world.obey()
    # It was told again, if its answer was lost, and gave the same one.
    assert world.replicas() == [TP1, TP1]
    assert [one.switch.rolled_back for one in world.ended] == [True, False]  # w0 was brought back
    assert world.stage.pinned and world.stage.epoch == 2
    world.restart()
    assert world.stage.last is not None and world.stage.last.rolled_back and world.stage.pinned
    world.ask(TP4)
    assert {command.switch.epoch for command in world.commands()} == {3}


def test_a_store_that_was_lost_begins_above_what_workers_know() -> None:
    world = World(TP1)
    for wanted in (TP2, TP4, TP2):
        world.ask(wanted)
        world.obey()
    world.image.records.clear()
    world.restart()
    world.join(world.workers[0])
    world.heartbeat(world.workers[0])
    world.ask(TP1)
    [command] = world.commands()
    assert command.switch.epoch == 4
    world.obey()
    assert world.replicas() == [TP1]


def test_a_worker_that_joins_again_keeps_its_switched_parallelism() -> None:
    world = World(TP1)
    world.ask(TP2)
    world.obey()
    again = dataclasses.replace(world.workers[0], replica=TP1)  # its call says how it began
    world.join(again)
    assert not world.commands() and world.switching.running(STAGE) == Parallelism(2, 2)


def test_a_heartbeat_of_a_new_parallelism_keeps_the_version_that_came_with_it() -> None:
    world = World(TP1)
    before = world.tables.workers["w0"]
    world.ledger.membership.mark_alive("w0", before.incarnation, world.now, version=5)
    world.switching.reported(before, Parallelism(2, 2), 1)
    after = world.tables.workers["w0"]
    assert (after.version, after.parallelism, after.epoch) == (5, (2, 2, 1, 1), 1)


def test_workers_that_say_nothing_count_as_they_joined_or_answered() -> None:
    world = World(TP1)
    member = world.tables.workers["w0"]
    world.switching.reported(member, None, 0)
    assert world.switching.running(STAGE) == Parallelism(4)
    world.ask(TP2)
    world.obey()
    world.switching.reported(member, None, 0)
    assert world.switching.running(STAGE) == Parallelism(2, 2) and not world.commands()


def test_a_pin_during_a_switch_lets_it_end() -> None:
    world = World(TP1)
    world.ask(TP2)
    [command] = world.commands()
    world.switching.pin(STAGE, True)
    assert world.commands() == [command]
    world.obey()
    assert world.replicas() == [TP2] and world.stage.pinned
    world.switching.pin(STAGE, False)
    assert not world.stage.pinned and world.stage.replica == TP2


def test_what_cannot_be_asked_for_is_refused_and_changes_nothing() -> None:
    world = World(TP1, TP1)
    with pytest.raises(IllegalParallelism, match="w0's 4 devices cannot be split into replicas of tp3"):
        world.ask((3, 1, 1))
    with pytest.raises(LedgerError, match="no worker of stage trainer"):
        world.switching.ask("trainer", TP2, by=By.OPERATOR, reason="", now=world.now)
    world.ask(TP2)
    with pytest.raises(LedgerError, match="rollout is switching from dp8 to dp4·tp2"):
        world.ask(TP4)
    assert world.stage.epoch == 1
    world.obey()
    assert world.replicas() == [TP2, TP2]


def test_the_cost_of_the_last_switches_is_kept() -> None:
    world = World(TP1)
    for at in range(10):
        world.ask(TP2 if at % 2 == 0 else TP1)
        [command] = world.commands()
        world.now += at
        world.tell(command, figured(OK, stall_s=0.0))
        world.commands()
    assert world.stage.costs_s == [at / 2 for at in range(2, 10)]
    world.restart()
    assert len(world.stage.costs_s) == 8
