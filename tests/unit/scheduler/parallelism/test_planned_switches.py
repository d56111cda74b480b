"""Switches that workers make by themselves: recorded once, and nobody is commanded to follow."""

from __future__ import annotations

from earl.switch_figures import StageSwitch
from services.scheduler.parallelism.planned_switches import PlannedSwitches
from services.scheduler.state.switch_records import By
from tests.support.switching import STAGE, TP1, TP2, World, whole


def test_switches_of_a_plan_are_recorded_once_and_move_no_other_worker() -> None:
    world = World(TP1, TP1)
    plan = PlannedSwitches(world.tables, [STAGE])
    first = world.worker("w0")
    member = world.tables.workers["w0"]
    made = StageSwitch(epoch=1, before=whole(TP1), after=whole(TP2), reason="switch.plan", stall_s=0.5)
    fact = plan.reported(member, made)
    assert fact is not None and fact.stage == STAGE and fact.switch.by is By.PLAN
    assert (fact.switch.former, fact.switch.target) == (whole(TP1), whole(TP2))
    assert world.stage.last == fact.switch and fact.switch.stall_s == 0.5
    first.replica, first.epoch = TP2, 1
    world.heartbeat(first)
    assert world.switching.running(STAGE) is None and not world.commands()
    # The answer to that heartbeat was lost.
    assert plan.reported(world.tables.workers["w0"], made) is None
    assert world.image.facts.count(fact) == 1


def test_a_run_that_is_resumed_with_a_plan_gives_up_what_an_operator_began() -> None:
    world = World(TP1, TP1)
    world.ask(TP2)
    world.switching.pin(STAGE, True)
    assert len(world.commands()) == 2
    world.restart()
    PlannedSwitches(world.tables, ["rollout", "trainer"])
    assert (world.stage.switch, world.stage.replica, world.stage.pinned) == (None, None, False)
    assert world.stage.epoch == 1 and not world.commands() and not world.ended
