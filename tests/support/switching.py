"""A stage whose workers obey or not, and a scheduler that forgets all but what it stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from earl.config.scheduler import SwitchConfig
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchOutcome
from earl.switch_figures import SwitchFigures
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.state.switch_records import (
    By,
    Replica,
    StageRecord,
    SwitchEnded,
    SwitchRecord,
    WorkerCommand,
)
from services.scheduler.state.workers import WorkerRecord
from tests.support.ledger import RULES, Image

STAGE, NUMBER = "rollout", 1
LIMITS = SwitchConfig(
    prepare_s=40.0,
    quiesce_s=20.0,
    switch_s=10.0,
    verify_s=10.0,
    recover_s=30.0,
    logprob_tolerance=0.01,
    retry_s=50.0,
)
TOTAL_S, RETRY_S = LIMITS.total_s, LIMITS.retry_s
TP1, TP2, TP4 = (1, 1, 1), (2, 1, 1), (4, 1, 1)
DEVICES = 4


@dataclass(frozen=True)
class Reaction:
    """A worker's reaction to a command. message: it rolls the switch back, for this reason."""

    message: str = ""
    figures: SwitchFigures = field(default_factory=SwitchFigures)

    def outcome(self, epoch: int, before: Parallelism, target: Parallelism) -> SwitchOutcome:
        return SwitchOutcome(
            epoch=epoch,
            parallelism=before if self.message else target,
            rolled_back=bool(self.message),
            message=self.message,
            **self.figures.figures(),
        )


OK = Reaction(
    figures=SwitchFigures(stall_s=0.5, sequences_continued=3, moved_bytes=100, max_logprob_difference=1e-5)
)
ROLLED_BACK = Reaction("engines did not start", SwitchFigures(stall_s=0.1))
APART = Reaction("log-probs are 0.5 apart", SwitchFigures(max_logprob_difference=0.5))


def whole(replica: Replica) -> Parallelism:
    """All devices of a worker in such replicas."""
    parallelism = Parallelism(1, *replica).over(DEVICES)
    assert parallelism is not None
    return parallelism


@dataclass
class Worker:
    """One process. known: outcome by epoch, for a command that comes again."""

    name: str
    start: Replica = TP1
    incarnation: int = 1
    alive: bool = True
    replica: Replica = TP1
    epoch: int = 0
    highest: int = 0
    known: dict[int, tuple[Parallelism, SwitchOutcome | str]] = field(default_factory=dict)

    def told(self, order: WorkerCommand, reaction: Reaction | str) -> SwitchOutcome | str:
        """The outcome of a command; that of `reaction` if the command is new to it. A text is an error."""
        command = order.switch
        if command.epoch in self.known:
            asked, again = self.known[command.epoch]
            assert asked == command.parallelism, "one epoch, two commands"
            return again
        if command.epoch < self.highest:
            return f"StaleEpoch: {command.epoch} is older than {self.highest}"
        self.highest = command.epoch
        outcome: SwitchOutcome | str = (
            reaction
            if isinstance(reaction, str)
            else reaction.outcome(command.epoch, whole(self.replica), command.parallelism)
        )
        if isinstance(outcome, SwitchOutcome) and not outcome.rolled_back:
            self.replica, self.epoch = command.parallelism.replica, command.epoch
        self.known[command.epoch] = command.parallelism, outcome
        return outcome

    def restart(self) -> None:
        self.incarnation += 1
        self.alive, self.replica, self.epoch, self.highest, self.known = True, self.start, 0, 0, {}


class World:
    """Scheduler and workers of one stage; `now` in seconds."""

    def __init__(self, *starts: Replica) -> None:
        self.now = 1000.0
        self.image = Image()
        self.workers = [Worker(f"w{number}", start, replica=start) for number, start in enumerate(starts)]
        self.told: list[WorkerCommand] = []
        self.ended: list[SwitchEnded] = []
        self.restart()
        for worker in self.workers:
            self.join(worker)

    # --- the scheduler ----------------------------------------------------------------------

    def restart(self) -> None:
        """The scheduler starts anew, from what it stored."""
        records = [(kind, name, data) for (kind, name), data in self.image.records.items()]
        self.ledger = Ledger.restored(RULES, records, self.now)
        self.switching = Switching(self.ledger.tables, LIMITS)

    @property
    def tables(self) -> LedgerTables:
        return self.ledger.tables

    @property
    def stage(self) -> StageRecord:
        return self.switching.stage(STAGE)

    def commands(self) -> list[WorkerCommand]:
        """Returns what is to be told now, stored; what ended is in `ended`."""
        self.ended += self.switching.advance(self.now)
        commands = self.switching.commands(self.now)
        self.image.apply(self.tables.take_changes())
        self.told += commands
        return commands

    def ask(self, replica: Replica, by: By = By.OPERATOR, step: int = 0) -> SwitchRecord | None:
        return self.switching.ask(STAGE, replica, by=by, reason="why", now=self.now, step=step)

    # --- workers ----------------------------------------------------------------------------

    def join(self, worker: Worker) -> None:
        parallelism = whole(worker.replica)
        member = WorkerRecord(
            name=worker.name, incarnation=worker.incarnation, stage=NUMBER, address="here",
            parallelism=(parallelism.dp, *parallelism.replica),
        )  # fmt: skip
        self.ledger.membership.join(member, self.now)

    def heartbeat(self, worker: Worker) -> None:
        member = self.tables.workers.get(worker.name)
        if member is not None and member.incarnation == worker.incarnation:
            self.switching.reported(member, whole(worker.replica), worker.epoch)

    def lose(self, worker: Worker) -> None:
        """A worker dies, and its membership ends."""
        worker.alive = False
        self.ledger.membership.leave(worker.name, "silent")

    def worker(self, name: str) -> Worker:
        return next(worker for worker in self.workers if worker.name == name)

    def tell(self, command: WorkerCommand, reaction: Reaction | str = OK, *, lost: bool = False) -> None:
        """A command arrives; its answer too, unless it is lost."""
        worker = self.worker(command.worker)
        if not worker.alive or worker.incarnation != command.incarnation:
            return
        answer = worker.told(command, reaction)
        if not lost:
            self.answer(command, answer)

    def answer(self, command: WorkerCommand, answer: SwitchOutcome | Reaction | str) -> None:
        if isinstance(answer, Reaction):
            before = whole(self.worker(command.worker).replica)
            answer = answer.outcome(command.switch.epoch, before, command.switch.parallelism)
        if isinstance(answer, str):
            self.switching.failed(command, answer, self.now)
        else:
            self.switching.answered(command, answer, self.now)

    def obey(self, rounds: int = 6) -> None:
        """Everyone does as told until nothing is left to tell."""
        for _ in range(rounds):
            for command in self.commands():
                self.tell(command)
        assert not self.commands()

    def replicas(self) -> list[Replica]:
        return [worker.replica for worker in self.workers if worker.alive]
