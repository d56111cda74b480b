"""Whose turn it is on devices that rollout and trainer share: engines sleep while the trainer works. Pure.

    trainer asks for a batch ── none is ready ──► the rollout's turn: every worker wakes its engines
                             └─ one is ready ───► the trainer's turn: they go to sleep ─► it gets the batch

A trainer that asks for a batch has moved its state out of the devices; from the batch until it asks again it
has them. A worker that is gone is not waited for, and one that joins is commanded at once. Nothing is stored:
a scheduler that starts again commands nobody before the trainer asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from earl.parallelism import ROLLOUT, TRAINER
from services.scheduler.state.workers import WorkerId, WorkerRecord


@dataclass(frozen=True, slots=True)
class TurnCommand:
    """A command to a rollout worker. turn: its number, which grows, also over a restart of the scheduler."""

    worker: WorkerId
    address: str
    turn: int
    asleep: bool


class DeviceTurns:
    """The turns of one run."""

    def __init__(self) -> None:
        # ROLLOUT or TRAINER; "" until the trainer has asked for a batch.
        self.holder = ""
        self._turn = 0
        # The last turn that each worker has followed.
        self._followed: dict[WorkerId, int] = {}

    def give(self, stage: str, now_ns: int) -> bool:
        """Makes it the stage's turn; returns whether it was another's. now_ns: Unix time."""
        if self.holder == stage:
            return False
        self.holder, self._turn = stage, max(now_ns, self._turn + 1)
        return True

    def followed(self, command: TurnCommand) -> None:
        """A worker has carried out a command."""
        self._followed[command.worker] = max(command.turn, self._followed.get(command.worker, 0))

    def commands(self, workers: Iterable[WorkerRecord]) -> list[TurnCommand]:
        """The commands that workers have not carried out yet; forgets workers that are gone."""
        rollout = {worker.id: worker for worker in workers if worker.stage_name == ROLLOUT}
        self._followed = {worker: turn for worker, turn in self._followed.items() if worker in rollout}
        if not self.holder:
            return []
        return [
            TurnCommand(worker.id, worker.address, self._turn, self.holder == TRAINER)
            for worker in rollout.values()
            if self._followed.get(worker.id, 0) < self._turn
        ]

    def trainer_may_work(self, workers: Iterable[WorkerRecord]) -> bool:
        """Returns whether it is the trainer's turn, and the engines of all workers sleep."""
        return self.holder == TRAINER and not self.commands(workers)
