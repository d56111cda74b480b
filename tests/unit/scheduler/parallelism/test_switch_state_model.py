"""Any order of switches, losses, repetitions, deaths, restarts: the stage ends cut alike, as it should."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from earl.errors import EarlError
from earl.reparallelize import SwitchOutcome
from services.scheduler.state.switch_records import By, WorkerCommand
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

replicas = st.sampled_from([TP1, TP2, TP4])
outcomes = st.sampled_from([OK, OK, OK, ROLLED_BACK, APART, "ReshapeRefused: not to this one"])
which = st.integers(0, 2)


class SwitchingMachine(RuleBasedStateMachine):
    """Hypothesis chooses what happens; the workers know what is true."""

    @initialize(starts=st.lists(replicas, min_size=1, max_size=3))
    def begin(self, starts: list) -> None:
        self.world = World(*starts)
        self.mail: list[tuple[WorkerCommand, SwitchOutcome | str]] = []
        self.epochs: dict[int, tuple] = {}

    # --- what happens -----------------------------------------------------------------------

    @rule(replica=replicas, by=st.sampled_from([By.SELECTOR, By.OPERATOR]))
    def ask(self, replica: tuple, by: By) -> None:
        stage = self.world.stage
        barred = str(self.world.switching.barred(STAGE, self.world.now))
        try:
            self.world.ask(replica, by)
        except EarlError:
            assert not self.world.switching.devices(STAGE) or stage.switch is not None or barred != "{}"

    @rule(pinned=st.booleans())
    def pin(self, pinned: bool) -> None:
        self.world.switching.pin(STAGE, pinned)

    @rule()
    def look(self) -> None:
        self.note(self.world.commands())

    @rule(at=which, outcome=outcomes, answer=st.sampled_from(["now", "late", "lost"]))
    def tell(self, at: int, outcome: Reaction | str, answer: str) -> None:
        """One command arrives, the others were lost on their way."""
        commands = self.world.commands()
        self.note(commands)
        if not commands:
            return
        command = commands[at % len(commands)]
        worker = self.world.worker(command.worker)
        if not worker.alive or worker.incarnation != command.incarnation:
            return
        said = worker.told(command, outcome)
        if answer == "now":
            self.world.answer(command, said)
        elif answer == "late":
            self.mail.append((command, said))

    @rule(at=st.integers(0, 9), again=st.booleans())
    def late(self, at: int, again: bool) -> None:
        """An answer comes late, or a second time."""
        if self.mail:
            command, said = self.mail[at % len(self.mail)]
            if not again:
                self.mail.remove((command, said))
            self.world.answer(command, said)

    @rule(at=which)
    def heartbeat(self, at: int) -> None:
        worker = self.world.workers[at % len(self.world.workers)]
        if worker.alive:
            self.world.heartbeat(worker)

    @rule(at=which)
    def kill(self, at: int) -> None:
        worker = self.world.workers[at % len(self.world.workers)]
        if worker.alive:
            self.world.lose(worker)

    @rule(at=which, start=replicas)
    def restart_worker(self, at: int, start: tuple) -> None:
        """Sooner than its membership lapses, or after it died."""
        worker = self.world.workers[at % len(self.world.workers)]
        worker.start = start
        worker.restart()
        self.world.join(worker)

    @rule()
    def restart_scheduler(self) -> None:
        self.world.image.apply(self.world.tables.take_changes())
        self.world.restart()

    @rule(seconds=st.sampled_from([1.0, RETRY_S + 1, TOTAL_S + 1]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    # --- what is always so ------------------------------------------------------------------

    def note(self, commands: list[WorkerCommand]) -> None:
        for command in commands:
            asked = command.switch.parallelism.replica
            assert self.epochs.setdefault(command.switch.epoch, asked) == asked, "one epoch, two layouts"
        assert len({command.switch.epoch for command in commands}) <= 1

    @invariant()
    def epochs_grow(self) -> None:
        stage = self.world.stage
        switch = stage.switch
        if switch is not None:
            assert stage.epoch == switch.epoch
        assert all(epoch <= stage.epoch for epoch in self.epochs)
        assert all(worker.highest <= stage.epoch for worker in self.world.workers)

    def teardown(self) -> None:
        """From here on everything arrives and everyone obeys."""
        world = self.world
        for worker in world.workers:
            if not worker.alive:
                worker.restart()
                world.join(worker)
        for _ in range(40):
            for worker in world.workers:
                world.heartbeat(worker)
            for command in world.commands():
                worker = world.worker(command.worker)
                world.answer(command, worker.told(command, OK))
            world.now += RETRY_S
        world.commands()
        stage = world.stage
        assert stage.switch is None and not world.commands()
        if stage.replica is not None:
            assert set(world.replicas()) == {stage.replica}
            assert str(world.switching.running(STAGE)) == str(world.switching.target(STAGE))
        for worker in world.workers:
            assert world.tables.workers[worker.name].parallelism[1:] == worker.replica


TestSwitching = SwitchingMachine.TestCase
TestSwitching.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


# Where cores are busy, pytest's own bound may end an example in its middle. Hypothesis takes that for a
# failure, plays the example again, and reports FlakyStrategyDefinition, because it continues there.
@pytest.mark.slow
@pytest.mark.timeout(900)
class TestSwitchingLong(SwitchingMachine.TestCase):
    settings = settings(
        max_examples=500,
        stateful_step_count=60,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
