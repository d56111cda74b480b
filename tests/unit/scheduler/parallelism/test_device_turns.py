"""Whose turn it is on shared devices, and which workers are commanded."""

from services.scheduler.parallelism.device_turns import DeviceTurns
from services.scheduler.state.workers import WorkerRecord

ROLLOUT, REFERENCE, TRAINER = 1, 2, 3


def worker(name: str, stage: int = ROLLOUT, incarnation: int = 1) -> WorkerRecord:
    return WorkerRecord(name=name, incarnation=incarnation, stage=stage, address=f"{name}:1")


def test_nobody_is_commanded_before_the_trainer_asks():
    turns = DeviceTurns()
    assert turns.commands([worker("r")]) == [] and not turns.trainer_may_work([worker("r")])


def test_the_trainer_works_once_every_rollout_worker_has_put_its_engines_to_sleep():
    turns, fleet = DeviceTurns(), [worker("r0"), worker("r1"), worker("f", REFERENCE), worker("t", TRAINER)]
    assert turns.give("trainer", 100) and not turns.give("trainer", 101)
    first, second = turns.commands(fleet)
    assert (first.worker.name, first.address, first.asleep, first.turn) == ("r0", "r0:1", True, 100)
    turns.followed(first)
    assert turns.commands(fleet) == [second] and not turns.trainer_may_work(fleet)
    turns.followed(second)
    assert turns.commands(fleet) == [] and turns.trainer_may_work(fleet)
    assert turns.give("rollout", 100)
    assert [(command.turn, command.asleep) for command in turns.commands(fleet)] == [(101, False)] * 2
    assert not turns.trainer_may_work(fleet)


def test_a_worker_that_is_gone_is_not_waited_for_and_its_successor_is_commanded():
    turns = DeviceTurns()
    turns.give("trainer", 1)
    [command] = turns.commands([worker("r")])
    assert turns.trainer_may_work([])
    [again] = turns.commands([worker("r", incarnation=2)])
    turns.followed(command)  # an answer of the former life
    assert turns.commands([worker("r", incarnation=2)]) == [again]


def test_an_answer_to_an_older_turn_does_not_count():
    turns, fleet = DeviceTurns(), [worker("r")]
    turns.give("trainer", 1)
    [old] = turns.commands(fleet)
    turns.give("rollout", 2)
    turns.give("trainer", 3)
    turns.followed(old)
    assert not turns.trainer_may_work(fleet)
