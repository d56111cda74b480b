"""A stage whose workers obey or not, and a scheduler that forgets all but what it stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from earl.parallelism import Parallelism
from services.scheduler.ledger.index import Book
from services.scheduler.ledger.ledger import Ledger
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.state.records import Member
from services.scheduler.state.switch_records import Answer, By, Command, Course, Ended, Replica, Switch
from tests.support.ledger import RULES, Image

STAGE, NUMBER = "rollout", 1
PATIENCE_S, RETRY_S, TOLERANCE = 100.0, 50.0, 0.01
TP1, TP2, TP4 = (1, 1, 1), (2, 1, 1), (4, 1, 1)
DEVICES = 4

OK = Answer(stall_s=0.5, sequences_continued=3, moved_bytes=100, max_logprob_difference=1e-5)
ROLLED_BACK = Answer(rolled_back=True, message="engines did not start", stall_s=0.1)
APART = Answer(rolled_back=True, message="log-probs are 0.5 apart", max_logprob_difference=0.5)


@dataclass
class Worker:
    """One process. known: outcome by epoch, for a command that comes again."""

    name: str
    start: Replica = TP1
    incarnation: int = 1
    alive: bool = True
    cut: Replica = TP1
    epoch: int = 0
    highest: int = 0
    known: dict[int, tuple[Parallelism, Answer | str]] = field(default_factory=dict)

    def told(self, command: Command, outcome: Answer | str) -> Answer | str:
        """What it makes of a command; `outcome` if it is new to it. A text is an error."""
        if command.epoch in self.known:
            asked, again = self.known[command.epoch]
            assert asked == command.parallelism, "one epoch, two commands"
            return again
        if command.epoch < self.highest:
            return f"StaleEpoch: {command.epoch} is older than {self.highest}"
        self.highest = command.epoch
        if isinstance(outcome, Answer) and not outcome.rolled_back:
            self.cut, self.epoch = command.parallelism.replica, command.epoch
        self.known[command.epoch] = command.parallelism, outcome
        return outcome

    def restart(self) -> None:
        self.incarnation += 1
        self.alive, self.cut, self.epoch, self.highest, self.known = True, self.start, 0, 0, {}


class World:
    """Scheduler and workers of one stage; `now` in seconds."""

    def __init__(self, *starts: Replica) -> None:
        self.now = 1000.0
        self.image = Image()
        self.workers = [Worker(f"w{at}", start, cut=start) for at, start in enumerate(starts)]
        self.told: list[Command] = []
        self.ended: list[Ended] = []
        self.restart()
        for worker in self.workers:
            self.join(worker)

    # --- the scheduler ----------------------------------------------------------------------

    def restart(self) -> None:
        """The scheduler starts anew, from what it stored."""
        records = [(kind, name, data) for (kind, name), data in self.image.records.items()]
        self.ledger = Ledger.restored(RULES, records, self.now)
        self.switching = Switching(
            self.ledger.book, patience_s=PATIENCE_S, retry_s=RETRY_S, tolerance=TOLERANCE
        )

    @property
    def book(self) -> Book:
        return self.ledger.book

    @property
    def course(self) -> Course:
        return self.switching.course(STAGE)

    def commands(self) -> list[Command]:
        """What is to be told now, stored; what ended is in `ended`."""
        self.ended += self.switching.advance(self.now)
        commands = self.switching.commands(self.now)
        self.image.apply(self.book.take_changes())
        self.told += commands
        return commands

    def ask(self, replica: Replica, by: By = By.OPERATOR, step: int = 0) -> Switch | None:
        return self.switching.ask(STAGE, replica, by=by, reason="why", now=self.now, step=step)

    # --- workers ----------------------------------------------------------------------------

    def join(self, worker: Worker) -> None:
        cut = Parallelism(1, *worker.cut).over(DEVICES)
        assert cut is not None
        member = Member(
            name=worker.name, incarnation=worker.incarnation, stage=NUMBER, address="here",
            parallelism=(cut.dp, *cut.replica),
        )  # fmt: skip
        self.ledger.join(member, self.now)

    def heartbeat(self, worker: Worker) -> None:
        cut = Parallelism(1, *worker.cut).over(DEVICES)
        member = self.book.members.get(worker.name)
        if member is not None and member.incarnation == worker.incarnation:
            self.switching.reported(member, cut, worker.epoch)

    def lose(self, worker: Worker) -> None:
        """It dies, and its membership ends."""
        worker.alive = False
        self.ledger.leave(worker.name, "silent")

    def worker(self, name: str) -> Worker:
        return next(one for one in self.workers if one.name == name)

    def tell(self, command: Command, outcome: Answer | str = OK, *, lost: bool = False) -> None:
        """A command arrives; its answer too, unless it is lost."""
        worker = self.worker(command.worker)
        if not worker.alive or worker.incarnation != command.incarnation:
            return
        answer = worker.told(command, outcome)
        if not lost:
            self.answer(command, answer)

    def answer(self, command: Command, answer: Answer | str) -> None:
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

    def cuts(self) -> list[Replica]:
        return [worker.cut for worker in self.workers if worker.alive]
