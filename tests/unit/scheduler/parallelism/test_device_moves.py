"""Moves of devices between stages whose workers obey, fail, die, and begin again with what they hold."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from earl.errors import IllegalParallelism, LedgerError
from earl.parallelism import POOLED, Division, Parallelism
from earl.reparallelize import SwitchOutcome
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.parallelism.device_moves import DeviceMoves, moved_text
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.state.device_move import DeviceMove, MovePhase, by_stage
from services.scheduler.state.switch_records import By, WorkerCommand
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES, Image
from tests.support.switching import LIMITS, TOTAL_S

POOL = 8
NUMBERS = {"rollout": 1, "trainer": 3, "reference": 2}


@dataclass
class Worker:
    """The one process of a stage. tp: of its replicas."""

    stage: str
    devices: int
    tp: int = 1
    incarnation: int = 1
    epoch: int = 0
    alive: bool = True

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(self.devices // self.tp, self.tp)

    def obey(self, command: WorkerCommand) -> None:
        self.devices, self.tp = command.switch.parallelism.devices, command.switch.parallelism.tp
        self.epoch = command.switch.epoch


class World:
    """A scheduler, which forgets all but what it stored, and the workers: two, or three with a reference
    stage."""

    def __init__(
        self, rollout: int = 6, trainer: int = 2, pool: int = POOL, tp: int = 1, reference: int = 0
    ) -> None:
        self.now, self.pool = 1000.0, pool
        self.stages = POOLED if reference else POOLED[:2]
        self.image = Image()
        self.workers = {"rollout": Worker("rollout", rollout, tp), "trainer": Worker("trainer", trainer)}
        if reference:
            self.workers["reference"] = Worker("reference", reference)
        self.ended: list[DeviceMove] = []
        self.restart()
        for worker in self.workers.values():
            self.join(worker)

    def restart(self) -> None:
        records = [(kind, name, data) for (kind, name), data in self.image.records.items()]
        self.ledger = Ledger.restored(RULES, records, self.now)
        self.switching = Switching(self.ledger.tables, LIMITS)
        self.moves = DeviceMoves(self.ledger.tables, self.switching, LIMITS, self.pool, self.stages)

    def join(self, worker: Worker) -> None:
        parallelism = worker.parallelism
        member = WorkerRecord(
            name=worker.stage, incarnation=worker.incarnation, stage=NUMBERS[worker.stage], address="here",
            parallelism=(parallelism.dp, *parallelism.replica),
        )  # fmt: skip
        self.ledger.membership.join(member, self.now)

    def ask(self, *devices: int, **tps: int) -> DeviceMove | None:
        replicas = {stage: (tp, 1, 1) for stage, tp in tps.items()}
        return self.moves.ask(devices, by=By.OPERATOR, reason="why", now=self.now, replicas=replicas)

    def commands(self) -> list[WorkerCommand]:
        """The commands of now; stored, as the driver does it."""
        self.switching.advance(self.now)
        ended = self.moves.advance(self.now)
        if ended is not None:
            self.ended.append(ended)
        commands = self.switching.commands(self.now)
        self.image.apply(self.ledger.tables.take_changes())
        return commands

    def tell(self, command: WorkerCommand, failure: str = "") -> None:
        worker = self.workers[command.stage]
        if not worker.alive or worker.incarnation != command.incarnation:
            return
        if not failure:
            worker.obey(command)
        self.switching.answered(
            command,
            SwitchOutcome(
                epoch=command.switch.epoch, parallelism=worker.parallelism, rolled_back=bool(failure),
                message=failure, stall_s=0.0 if command.stage == "rollout" else 0.5,
            ),
            self.now,
        )  # fmt: skip

    def die(self, stage: str) -> None:
        self.workers[stage].alive = False
        self.ledger.membership.leave(stage, "silent")

    def come_back(self, stage: str) -> None:
        """A stage that is started again begins with what it holds."""
        worker = self.workers[stage]
        move = self.moves.move
        worker.incarnation, worker.alive, worker.epoch = worker.incarnation + 1, True, 0
        if move is not None:
            worker.devices = by_stage(move.holds)[stage]
            worker.tp = move.held_replicas[stage][0]
        self.join(worker)

    def settle(self, failing: str = "") -> None:
        """Everyone obeys, but for the commands to the stage that fails once."""
        for _ in range(12):
            for command in self.commands():
                fails = "no memory" if command.stage == failing else ""
                failing = "" if fails else failing
                self.tell(command, fails)

    @property
    def devices(self) -> Division:
        return tuple(self.workers[stage].devices for stage in self.stages)

    @property
    def tps(self) -> tuple[int, ...]:
        return tuple(self.workers[stage].tp for stage in self.stages)


def test_devices_go_to_the_trainer_and_back():
    world = World()
    move = world.ask(5, 3)
    assert move is not None and (move.giver, move.taker, move.phase) == (
        "rollout",
        "trainer",
        MovePhase.GIVING,
    )
    first = world.commands()
    assert [(command.stage, command.switch.parallelism) for command in first] == [("rollout", Parallelism(5))]
    assert world.moves.move is not None and world.moves.move.holds == (6, 2)
    world.tell(first[0])
    assert not world.commands() and world.moves.move.holds == (5, 2), "kept before the other gets any"
    second = world.commands()
    assert [(command.stage, command.switch.parallelism) for command in second] == [
        ("trainer", Parallelism(3))
    ]
    world.tell(second[0])
    world.settle()
    ended = world.ended[-1]
    assert not ended.rolled_back and ended.holds == (5, 3) == world.devices
    assert (ended.stall_s, moved_text(ended)) == (0.5, "rollout 6 → 5, trainer 2 → 3")
    world.ask(7, 1)
    world.settle()
    assert world.devices == (7, 1) and world.ended[-1].number == 2


def test_a_move_changes_replicas_together_with_devices():
    world = World()
    move = world.ask(4, 4, rollout=2, trainer=4)
    assert move is not None and moved_text(move) == "rollout 6 → 4 as dp2·tp2, trainer 2 → 4 as tp4"
    [command] = world.commands()
    assert command.switch.parallelism == Parallelism(2, 2)
    assert move.held_layouts == {"rollout": Parallelism(6), "trainer": Parallelism(2)}
    world.tell(command)
    world.commands()
    assert world.moves.move is not None
    assert world.moves.move.held_layouts == {"rollout": Parallelism(2, 2), "trainer": Parallelism(2)}
    world.settle()
    assert not world.ended[-1].rolled_back and (world.devices, world.tps) == ((4, 4), (2, 4))
    assert world.ended[-1].held_layouts == {"rollout": Parallelism(2, 2), "trainer": Parallelism(1, 4)}
    # Those that are not named keep what they have, and nothing is corrected afterwards.
    world.ask(2, 6, trainer=1)
    world.settle()
    assert (world.devices, world.tps) == ((2, 6), (2, 1)) and not world.commands()


@pytest.mark.parametrize("failing", ["rollout", "trainer"])
def test_a_roll_back_brings_devices_and_replicas_back(failing: str):
    world = World()
    world.ask(4, 4, rollout=2, trainer=4)
    world.settle(failing=failing)
    assert world.ended[-1].rolled_back and (world.devices, world.tps) == ((6, 2), (1, 1))
    assert world.ended[-1].held_layouts == {"rollout": Parallelism(6), "trainer": Parallelism(2)}
    # The replica that failed is not chosen for a while.
    tp = {"rollout": 2, "trainer": 4}[failing]
    assert (tp, 1, 1) in world.switching.barred(failing, world.now)


def test_a_scheduler_that_starts_again_takes_the_replicas_of_a_move_from_its_record():
    world = World()
    world.ask(4, 4, rollout=2, trainer=4)
    world.tell(world.commands()[0])
    world.commands()
    world.image.apply(world.ledger.tables.take_changes())
    world.restart()
    world.settle()
    assert (world.devices, world.tps) == ((4, 4), (2, 4))


def test_a_record_without_replicas_is_continued_in_those_that_the_stages_have():
    world = World(tp=2)
    world.ask(4, 4)
    world.tell(world.commands()[0])
    move = world.moves.move
    assert move is not None
    world.ledger.tables.change_move(replace(move, replicas_before={}, replicas_after={}))
    world.settle()
    assert (world.devices, world.tps) == ((4, 4), (2, 1)) and world.ended[-1].held_layouts == {}


def test_a_giver_that_fails_keeps_its_devices():
    world = World()
    world.ask(4, 4)
    world.settle(failing="rollout")
    ended = world.ended[-1]
    assert ended.rolled_back and "no memory" in ended.message
    assert ended.holds == (6, 2) == world.devices


def test_the_giver_takes_back_what_the_other_could_not_take():
    world = World()
    world.ask(4, 4)
    world.settle(failing="trainer")
    ended = world.ended[-1]
    assert ended.rolled_back and "trainer took none: trainer: no memory" in ended.message
    assert ended.holds == (6, 2) == world.devices


def test_a_trainer_that_dies_while_it_takes_devices_begins_with_those_that_it_had():
    world = World()
    world.ask(4, 4)
    world.tell(world.commands()[0])
    world.commands()
    assert world.commands()[0].stage == "trainer"
    world.die("trainer")
    assert not world.commands(), "the devices are not given back before it is known what it has"
    world.come_back("trainer")
    world.settle()
    assert world.ended[-1].rolled_back and world.devices == (6, 2)


def test_devices_that_nobody_took_back_can_be_taken_later():
    world = World()
    world.ask(4, 4)
    world.tell(world.commands()[0])
    world.commands()
    world.tell(world.commands()[0], "no memory")
    world.settle(failing="rollout")
    ended = world.ended[-1]
    assert ended.rolled_back and ended.holds == (4, 2) == world.devices and "idle" in ended.message
    world.ask(4, 4)
    world.settle()
    assert world.devices == (4, 4) and not world.ended[-1].rolled_back


def test_a_stage_that_has_more_than_it_holds_gives_it_up():
    world = World()
    world.ask(5, 3)
    world.settle()
    world.workers["rollout"].devices = 6
    world.switching.reported(world.ledger.tables.workers["rollout"], Parallelism(6), 1)
    world.settle()
    assert world.devices == (5, 3)


def test_what_cannot_be_is_refused_and_changes_nothing():
    world = World(tp=2)
    for after, error in (
        ((8, 0), LedgerError),
        ((7, 2), LedgerError),
        ((5, 3), IllegalParallelism),
        ((6, 1), LedgerError),
    ):
        with pytest.raises(error):
            world.ask(*after)
        assert world.moves.move is None and not world.commands()
    assert world.ask(6, 2) is None
    world.ask(4, 4)
    with pytest.raises(LedgerError, match="moving already"):
        world.ask(2, 6)
    with pytest.raises(LedgerError, match=r"stack\.pool_devices"):
        World(pool=0).ask(5, 3)


def test_devices_go_between_any_two_of_three_stages():
    world = World(4, 2, reference=2)
    move = world.ask(5, 2, 1)
    assert move is not None and (move.giver, move.taker) == ("reference", "rollout")
    world.settle()
    ended = world.ended[-1]
    assert not ended.rolled_back and ended.holds == (5, 2, 1) == world.devices
    # The reference stage's ranks changed; the trainer's last switch, had there been one, is no part of it.
    assert (ended.stall_s, moved_text(ended)) == (0.5, "rollout 4 → 5, reference 2 → 1")
    world.ask(5, 1, 2)
    world.settle()
    assert world.devices == (5, 1, 2) and world.ended[-1].stall_s == 1.0
    world.ask(6, 1, 1)
    world.settle(failing="rollout")
    assert world.ended[-1].rolled_back and world.devices == (5, 1, 2)
    for after, text in (((3, 2, 3), "is no move"), ((6, 2, 0), "no division")):
        with pytest.raises(LedgerError, match=text):
            world.ask(*after)
    world.die("reference")
    with pytest.raises(LedgerError, match="reference has no worker now"):
        world.ask(4, 2, 2)


def test_idle_devices_that_could_not_be_taken_stay_idle():
    world = World(4, 1, reference=1)
    move = world.ask(4, 1, 3)
    assert move is not None and (move.giver, move.phase) == ("", MovePhase.GIVEN)
    world.settle(failing="reference")
    ended = world.ended[-1]
    assert ended.rolled_back and "reference took none" in ended.message
    assert ended.holds == (4, 1, 1) == world.devices


def test_a_record_of_two_stages_is_continued_by_a_scheduler_of_three():
    world = World(5, 3)
    world.ask(4, 4)
    world.settle()
    world.stages, world.pool = POOLED, POOL + 2
    world.workers["reference"] = Worker("reference", 2)
    world.restart()
    world.join(world.workers["reference"])
    world.settle()
    assert world.devices == (4, 4, 2)
    move = world.ask(4, 5, 1)
    assert move is not None and move.number == 2
    world.settle()
    assert world.devices == (4, 5, 1) and not world.ended[-1].rolled_back


# Of two stages, where the last is 0, and of three.
DIVISIONS = [
    (rollout, trainer, POOL - rollout - trainer)
    for rollout in range(1, POOL)
    for trainer in range(1, POOL - rollout + 1)
]


class Moves(RuleBasedStateMachine):
    """Whatever fails and whenever: the pool is never exceeded, and every move ends."""

    @initialize(devices=st.sampled_from(DIVISIONS))
    def begin(self, devices: Division) -> None:
        rollout, trainer, reference = devices
        self.world = World(rollout, trainer, reference=reference)
        self.open: list[WorkerCommand] = []

    @rule(
        giver=st.sampled_from(POOLED),
        taker=st.sampled_from(POOLED),
        devices=st.integers(1, POOL),
        tps=st.dictionaries(st.sampled_from(POOLED), st.sampled_from([1, 2, 4])),
    )
    def ask(self, giver: str, taker: str, devices: int, tps: dict[str, int]) -> None:
        after = by_stage(self.world.moves.devices)
        if giver not in after or taker not in after:
            return
        after[giver], after[taker] = after[giver] - devices, after[taker] + devices
        try:
            self.world.ask(*after.values(), **tps)
        except (LedgerError, IllegalParallelism):
            pass
        self.turn()

    @rule()
    def turn(self) -> None:
        self.open = self.world.commands()

    @precondition(lambda self: self.open)
    @rule(fails=st.booleans())
    def answer(self, fails: bool) -> None:
        self.world.tell(self.open.pop(), "it failed" if fails else "")

    @precondition(lambda self: self.open)
    @rule()
    def obey_without_an_answer(self) -> None:
        """The answer is lost; the worker's heartbeat tells."""
        command = self.open.pop()
        worker = self.world.workers[command.stage]
        if worker.alive and worker.incarnation == command.incarnation:
            worker.obey(command)
            member = self.world.ledger.tables.workers[command.stage]
            self.world.switching.reported(member, worker.parallelism, worker.epoch)

    @rule(stage=st.sampled_from(POOLED))
    def die_or_come_back(self, stage: str) -> None:
        if stage not in self.world.workers:
            return
        if self.world.workers[stage].alive:
            self.world.die(stage)
            self.open = [command for command in self.open if command.stage != stage]
        else:
            self.world.come_back(stage)

    @rule()
    def restart(self) -> None:
        self.world.image.apply(self.world.ledger.tables.take_changes())
        self.world.restart()
        self.open = []

    @rule(seconds=st.sampled_from([1.0, TOTAL_S + 1]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        self.turn()

    @invariant()
    def within_the_pool(self) -> None:
        if hasattr(self, "world"):
            assert sum(self.world.devices) <= POOL
            move = self.world.moves.move
            assert move is None or sum(move.holds) <= POOL

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        for stage, worker in world.workers.items():
            if not worker.alive:
                world.come_back(stage)
        for _ in range(4):
            world.settle()
            world.now += TOTAL_S + 1
        move = world.moves.move
        assert move is None or not move.running
        assert move is None or world.devices == move.holds, (world.devices, move)
        if move is not None:
            held = tuple(replica[0] for replica in move.held_replicas.values())
            assert world.tps == held, (world.tps, move)


TestMoves = Moves.TestCase
