"""The pool of devices that rollout and trainer draw on: requests, devices.json, reports of moves.

    earl parallelism move ─► ask ─► DeviceMoves ─► Switching
                       advance: devices.json is written ─► the move's next step

Promise: a stage is commanded to take devices only once the file tells that the other gave them up.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from earl.errors import LedgerError
from earl.parallelism import Parallelism
from earl.stack.device_split import keep_split
from services.scheduler.files.metrics_files import RunReport
from services.scheduler.parallelism.device_moves import POOLED, DeviceMoves, moved_text
from services.scheduler.parallelism.legal_layouts import LegalLayouts
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.state.device_move import DeviceMove
from services.scheduler.state.switch_records import By
from services.scheduler.wakeup import Wakeup

log = logging.getLogger(__name__)


class DevicePool:
    """Carries out the moves of a run. ended: told of each that has ended."""

    def __init__(
        self,
        moves: DeviceMoves,
        switching: Switching,
        layouts: LegalLayouts,
        directory: Path,
        report: RunReport,
        ended: Wakeup,
    ) -> None:
        self.moves = moves
        self._switching, self._layouts, self._directory = switching, layouts, directory
        self._report, self._ended = report, ended
        # What devices.json holds, as far as this process knows.
        self._kept: tuple[int, int] | None = None
        self._warned = False

    def after(self, giver: str, taker: str, devices: int) -> tuple[int, int]:
        """Returns the devices of rollout and trainer after a move of so many. Raises LedgerError for stages
        that have no pool."""
        if {giver, taker} != set(POOLED) or devices < 1:
            raise LedgerError(
                f"{devices} devices cannot go from {giver} to {taker}",
                f"move at least one from {POOLED[0]} to {POOLED[1]} or back",
            )
        change = devices if taker == POOLED[0] else -devices
        rollout, trainer = self.moves.devices
        return rollout + change, trainer - change

    def ask(
        self, after: tuple[int, int], *, now: float, by: By = By.OPERATOR,
        reason: str = "an operator asked for it", step: int = 0,
    ) -> DeviceMove | None:  # fmt: skip
        """Begins a move to so many devices of rollout and of the trainer. Raises as DeviceMoves.ask, and
        IllegalParallelism for numbers of devices that a stage cannot have."""
        for stage, count in zip(POOLED, after, strict=True):
            running = self._switching.running(stage)
            if running is not None and count > 0:
                self._layouts.check(stage, [count], 0, Parallelism(1, *running.replica))
        return self.moves.ask(after, by=by, reason=reason, now=now, step=step)

    def splits(self) -> list[tuple[int, int]]:
        """The divisions of the whole pool that both stages can have, in the replicas that they have now."""
        pool, replicas = self.moves.pool, [self._switching.running(stage) for stage in POOLED]
        return [
            (rollout, pool - rollout)
            for rollout in range(1, pool)
            if all(
                running is not None
                and any(legal.replica == running.replica for legal in self._layouts.legal(stage, [count]))
                for stage, running, count in zip(POOLED, replicas, (rollout, pool - rollout), strict=True)
            )
        ]

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
        if move is None or move.holds == self._kept:
            return True
        try:
            keep_split(self._directory, dict(zip(POOLED, move.holds, strict=True)))
        except OSError as error:
            if not self._warned:
                log.warning("moves of devices wait, devices.json cannot be written: %s", error)
            self._warned = True
            return False
        self._kept, self._warned = move.holds, False
        return True
