"""The pool of devices that a run's stages draw on: requests, devices.json, reports of moves.

    earl parallelism move ─► ask ─► DeviceMoves ─► Switching
                       advance: devices.json is written ─► the move's next step

Promise: a stage is commanded to take devices only once the file tells that another gave them up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path

from earl.errors import LedgerError
from earl.parallelism import Division, Parallelism, Replica
from earl.stack.device_split import keep_split
from services.scheduler.files.metrics_files import RunReport
from services.scheduler.parallelism.device_moves import DeviceMoves, moved_text
from services.scheduler.parallelism.legal_layouts import LegalLayouts
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.state.device_move import DeviceMove, by_stage
from services.scheduler.state.switch_records import By
from services.scheduler.wakeup import Wakeup

log = logging.getLogger(__name__)


# A layout that a stage is to have: dp, 0 where its devices give it, and one replica.
LayoutWish = tuple[int, Parallelism]


class DevicePool:
    """Carries out the moves of a run. ended: told of each that has ended. most: devices that a stage has
    processes for."""

    def __init__(
        self,
        moves: DeviceMoves,
        switching: Switching,
        layouts: LegalLayouts,
        directory: Path,
        report: RunReport,
        ended: Wakeup,
        most: Mapping[str, int],
    ) -> None:
        self.moves = moves
        self._switching, self._layouts, self._directory = switching, layouts, directory
        self._report, self._ended, self._most = report, ended, most
        # What devices.json holds, as far as this process knows.
        self._kept: tuple[Division, dict[str, Replica]] | None = None
        self._warned = False

    def after(self, giver: str, taker: str, devices: int) -> Division:
        """Returns the division after a move of so many devices. Raises LedgerError for stages that are not
        two of the pool's."""
        stages = self.moves.stages
        if giver == taker or not {giver, taker} <= set(stages) or devices < 1:
            raise LedgerError(
                f"{devices} devices cannot go from {giver} to {taker}",
                f"move at least one between two of {', '.join(stages)}",
            )
        change = {giver: -devices, taker: devices}
        return tuple(
            count + change.get(stage, 0) for stage, count in zip(stages, self.moves.devices, strict=True)
        )

    def ask(
        self, after: Division, *, now: float, by: By = By.OPERATOR,
        reason: str = "an operator asked for it", step: int = 0,
        layouts: Mapping[str, LayoutWish] | None = None,
    ) -> DeviceMove | None:  # fmt: skip
        """Begins a move to another division. layouts: of giver and taker afterwards, where they change.

        Raises as DeviceMoves.ask, LedgerError for more devices than a stage has processes for, and
        IllegalParallelism for layouts that a stage cannot have on its devices.
        """
        wishes = layouts or {}
        for stage, count in zip(self.moves.stages, after, strict=True):
            running = self._switching.running(stage)
            if running is not None and count > 0:
                dp, replica = wishes.get(stage, (0, running))
                self._layouts.check(stage, [count], dp, replica)
            if count > self._most[stage] and min(after) > 0:
                raise LedgerError(
                    f"{stage} has processes for {self._most[stage]} devices, not for {count}",
                    f"give it no more than {self._most[stage]}",
                )
        replicas = {stage: replica.replica for stage, (_, replica) in wishes.items()}
        return self.moves.ask(after, by=by, reason=reason, now=now, step=step, replicas=replicas)

    def is_moving(self, stage: str) -> bool:
        """Returns whether a move in progress changes the devices of a stage."""
        move = self.moves.move
        return move is not None and move.running and stage in move.changes

    def running(self) -> dict[str, Parallelism]:
        """The parallelism of the pool's stages; without those that have no worker."""
        known = {stage: self._switching.running(stage) for stage in self.moves.stages}
        return {stage: running for stage, running in known.items() if running is not None}

    @property
    def is_switching(self) -> bool:
        """Returns whether a switch of one of the stages is in progress."""
        return any(self._switching.stage(stage).switch is not None for stage in self.moves.stages)

    def switches(self) -> tuple[int, ...]:
        """Numbers of the last switches of all stages: they differ once anything was changed."""
        return tuple(self._switching.stage(stage).epoch for stage in self.moves.stages)

    def counts(self, stage: str) -> list[int]:
        """The numbers of devices that a stage could have, in some layout."""
        most = min(self._most[stage], self.moves.pool - len(self.moves.stages) + 1)
        return [count for count in range(1, most + 1) if self._layouts.legal(stage, [count])]

    def splits(self) -> list[Division]:
        """The divisions of the whole pool that all stages can have, in the replicas that they have now."""
        pool, stages = self.moves.pool, self.moves.stages
        possible = [
            [count for count in self.counts(stage) if self.can_have(stage, count)] for stage in stages
        ]
        return [division for division in product(*possible) if sum(division) == pool]

    def can_have(self, stage: str, devices: int) -> bool:
        """Returns whether a stage can have so many devices in its present replicas."""
        running = self._switching.running(stage)
        return running is not None and any(
            legal.replica == running.replica for legal in self._layouts.legal(stage, [devices])
        )

    def is_running(self, number: int) -> bool:
        """Returns whether the move of that number is in progress."""
        move = self.moves.move
        return move is not None and move.running and move.number == number

    def advance(self, now: float) -> None:
        """Takes the next step of a move, once the file tells what the last one has come to."""
        if not self._keep():
            return
        ended = self.moves.advance(now)
        self._keep()
        if ended is None:
            return
        self._report.moved(ended, time.time_ns())
        text = f"move {ended.number}, {moved_text(ended)}"
        if ended.rolled_back:
            log.warning("%s, was rolled back: %s", text, ended.message)
        else:
            log.info("%s, took %.2f s (%s)", text, ended.seconds, ended.reason)
        self._ended.notify()

    def _keep(self) -> bool:
        """Brings devices.json to what the stages have for sure; False, with a warning, while it cannot be
        written: a move waits until it can."""
        move = self.moves.move
        if move is None or (kept := (move.holds, move.held_replicas)) == self._kept:
            return True
        try:
            keep_split(self._directory, by_stage(move.holds), move.held_replicas)
        except OSError as error:
            if not self._warned:
                log.warning("moves of devices wait, devices.json cannot be written: %s", error)
            self._warned = True
            return False
        self._kept, self._warned = kept, False
        return True
