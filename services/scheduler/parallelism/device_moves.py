"""Devices of a pool go from one stage to another while all work. Pure.

    ask ─► GIVING: the giver's switch ─► GIVEN ─► TAKING: the taker's switch ─────► ENDED, as asked
               └─ failed: ENDED, rolled back         └─ failed ─► RETURNING: the giver takes them back
                                                                      └────────────► ENDED, rolled back

Giver and taker may get other replicas with their devices, and have the former ones again after a roll-back.

Promise: at no time do all stages together have more devices than the pool. A stage gets devices only after
the other's worker has reported that it gave them up, and after `holds` tells so, which a stage that is
started again begins with. A stage is judged by the devices that its worker reports, so that one which died
in the middle and came back needs no case of its own. Every phase ends: a switch has deadlines, and the wait
for a stage without a worker is as long as a switch may take.

Time is an argument (monotonic seconds). All but clocks is in the tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from msgspec.structs import replace

from earl.config.scheduler import SwitchConfig
from earl.errors import EarlError, IllegalParallelism, LedgerError
from earl.parallelism import Division, Parallelism, Replica
from services.scheduler.ledger.tables import LedgerTables
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.state.device_move import DeviceMove, MovePhase, by_stage, division_text, stage_text
from services.scheduler.state.switch_records import By

# Moves whose cost is remembered.
COSTS = 8


class DeviceMoves:
    """The moves of a run whose stages draw on one pool of so many devices; 0: there is none.

    stages: the first two of POOLED, or all.
    """

    def __init__(
        self,
        tables: LedgerTables,
        switching: Switching,
        limits: SwitchConfig,
        pool: int,
        stages: Sequence[str],
    ) -> None:
        self.stages = tuple(stages)
        self._tables, self._switching = tables, switching
        self._total_s, self._retry_s, self.pool = limits.total_s, limits.retry_s, pool
        # The last moves that ended as asked count; of a former scheduler's, only the last one.
        move = tables.run.move
        self._costs_s = deque([move.cost_s] if _is_done(move) else [], maxlen=COSTS)
        # When the move was asked for, and its phase began, or this process if that was later.
        self._began_s = self._phase_s = 0.0
        self._known: tuple[int, MovePhase] | None = None
        # Until when a stage that has too many devices is left alone.
        self._correct_s = 0.0

    @property
    def move(self) -> DeviceMove | None:
        """The last move, in progress or ended."""
        return self._tables.run.move

    @property
    def costs_s(self) -> list[float]:
        """Seconds of a step that the last moves cost, as measured."""
        return list(self._costs_s)

    @property
    def devices(self) -> Division:
        """Devices of each stage, as its worker reports them; 0 for a stage without one."""
        return tuple(map(self._has, self.stages))

    def ask(
        self, after: Division, *, by: By, reason: str, now: float, step: int = 0,
        replicas: Mapping[str, Replica] | None = None,
    ) -> DeviceMove | None:  # fmt: skip
        """Begins a move to another division; None if the stages have it.

        replicas: of giver and taker afterwards; a stage that is not named keeps those that it has.

        Raises LedgerError (no pool, no worker, a move or a switch in progress, more devices than there are)
        and IllegalParallelism.
        """
        before, move = self.devices, self.move
        if not self.pool:
            raise LedgerError(
                "each stage of this run keeps its own devices", "set stack.pool_devices in the run file"
            )
        if move is not None and move.running:
            raise LedgerError(
                f"devices are moving already: {moved_text(move)}",
                "wait until that has ended: earl parallelism",
            )
        if not all(before):
            alone = [stage for stage in self.stages if not self._has(stage)]
            raise LedgerError(f"{' and '.join(alone)} has no worker now", "wait until all have joined")
        if min(after) < 1 or sum(after) > self.pool:
            raise LedgerError(
                f"{division_text(after)} is no division of {self.pool} devices",
                "each stage keeps one device at least, and together they have no more than the pool",
            )
        if after == before:
            return None
        pairs = list(zip(after, before, strict=True))
        if sum(new > old for new, old in pairs) != 1 or sum(new < old for new, old in pairs) > 1:
            raise LedgerError(
                f"{division_text(after)}, from {division_text(before)}, is no move",
                "one stage takes devices, which another one gives or which are idle",
            )
        former = {
            stage: running.replica
            for stage in self.stages
            if (running := self._switching.running(stage)) is not None
        }
        move = DeviceMove(
            number=(move.number if move is not None else 0) + 1,
            before=before,
            after=after,
            holds=before,
            by=by,
            reason=reason,
            step=step,
            replicas_before=former,
            replicas_after=former | dict(replicas or {}),
        )
        for stage in move.changes:
            self._check_replica(move, stage)
        if self._switching.stage(move.taker).switch is not None:
            raise LedgerError(f"{move.taker} is switching", "wait until that has ended: earl parallelism")
        self._began_s = now
        if not move.giver:
            self._change(move, now, phase=MovePhase.GIVEN)
        else:
            epoch = self._resize(move, move.giver, self._of(after, move.giver), now)
            self._change(move, now, epoch=epoch)
        return self.move

    def advance(self, now: float) -> DeviceMove | None:
        """Takes the move's next step, if it is due; returns the move if it ended with that."""
        move = self.move
        if move is None:
            return None
        if not move.running:
            self._correct(move, now)
            return None
        if self._known != (move.number, move.phase):
            # A former scheduler began it.
            self._known, self._phase_s = (move.number, move.phase), now
            self._began_s = self._began_s or now
        if move.phase is not MovePhase.GIVEN and self._is_switching(move):
            return None
        match move.phase:
            case MovePhase.GIVING:
                self._given(move, now)
            case MovePhase.GIVEN:
                self._take(move, now)
            case MovePhase.TAKING:
                self._taken(move, now)
            case _:
                self._returned(move, now)
        ended = self.move
        return ended if ended is not None and not ended.running else None

    # --- phases -----------------------------------------------------------------------------

    def _given(self, move: DeviceMove, now: float) -> None:
        """The giver's switch has ended."""
        if self._waits_for_worker(move.giver, now):
            return
        if self._has(move.giver) == self._of(move.after, move.giver):
            self._change(move, now, phase=MovePhase.GIVEN, holds=self._between(move), epoch=0)
        else:
            self._end(move, now, f"{move.giver} kept its devices: {self._failure(move, move.giver)}")

    def _take(self, move: DeviceMove, now: float) -> None:
        try:
            epoch = self._resize(move, move.taker, self._of(move.after, move.taker), now)
        except EarlError as error:
            if now - self._phase_s > self._total_s:
                self._return(move, now, f"{move.taker} could not begin: {error.message}")
            return
        self._change(move, now, phase=MovePhase.TAKING, epoch=epoch)

    def _taken(self, move: DeviceMove, now: float) -> None:
        """The taker's switch has ended."""
        if self._waits_for_worker(move.taker, now):
            return
        stall_s = self._stalled(move)
        if self._has(move.taker) == self._of(move.after, move.taker):
            self._change(move, now, holds=move.after, stall_s=stall_s)
            self._end(self._now(), now, "")
        else:
            self._return(move, now, f"{move.taker} took none: {self._failure(move, move.taker)}")

    def _return(self, move: DeviceMove, now: float, reason: str) -> None:
        if not move.giver:
            self._end(move, now, reason)
            return
        try:
            epoch = self._resize(move, move.giver, self._of(move.before, move.giver), now)
        except EarlError as error:
            self._end(
                move, now, f"{reason}; the devices are idle, {move.giver} cannot take them back: {error}"
            )
            return
        self._change(move, now, phase=MovePhase.RETURNING, epoch=epoch, message=reason)

    def _returned(self, move: DeviceMove, now: float) -> None:
        if self._waits_for_worker(move.giver, now):
            return
        if self._has(move.giver) == self._of(move.before, move.giver):
            self._change(move, now, holds=move.before)
            self._end(self._now(), now, move.message)
        else:
            idle = f"the devices are idle, {move.giver} did not take them: {self._failure(move, move.giver)}"
            self._end(move, now, f"{move.message}; {idle}")

    def _correct(self, move: DeviceMove, now: float) -> None:
        """Takes devices from a stage that has more than it holds: one that was given up as lost, and had
        carried its part out after all."""
        for stage, devices in by_stage(move.holds).items():
            if self._has(stage) <= devices or now < self._correct_s:
                continue
            try:
                self._resize(move, stage, devices, now)
            except EarlError:
                pass  # it is switching: again, later
            self._correct_s = now + self._retry_s

    # --- within -----------------------------------------------------------------------------

    def _check_replica(self, move: DeviceMove, stage: str) -> None:
        devices = self._of(move.after, stage)
        replica = move.replica(stage, devices)
        if replica is not None and Parallelism(1, *replica).over(devices) is None:
            raise IllegalParallelism(
                f"{devices} devices of {stage} cannot be split into replicas of {Parallelism(1, *replica)}",
                "move as many as a replica has, or several times that",
            )

    def _resize(self, move: DeviceMove, stage: str, devices: int, now: float) -> int:
        reason = f"move {move.number}: {move.reason}"
        switch = self._switching.resize(
            stage, devices, move.replica(stage, devices), by=move.by, reason=reason, now=now, step=move.step
        )
        return switch.epoch

    def _change(self, move: DeviceMove, now: float, **fields: object) -> None:
        changed = replace(move, **fields)
        self._tables.change_move(changed)
        if self._known != (changed.number, changed.phase):
            self._known, self._phase_s = (changed.number, changed.phase), now

    def _end(self, move: DeviceMove, now: float, reason: str) -> None:
        """reason: of a move that is rolled back, else ""."""
        self._change(
            move, now, phase=MovePhase.ENDED, rolled_back=bool(reason), message=reason, epoch=0,
            seconds=max(move.stall_s, now - self._began_s),
        )  # fmt: skip
        if not reason:
            self._costs_s.append(self._now().cost_s)

    def _now(self) -> DeviceMove:
        move = self.move
        assert move is not None
        return move

    def _is_switching(self, move: DeviceMove) -> bool:
        """Returns whether the switch that carries the phase out is running."""
        stage = move.taker if move.phase is MovePhase.TAKING else move.giver
        switch = self._switching.stage(stage).switch
        return switch is not None and switch.epoch == move.epoch

    def _waits_for_worker(self, stage: str, now: float) -> bool:
        """Returns whether a stage's worker is gone, and may still come back."""
        return not self._has(stage) and now - self._phase_s <= 2 * self._total_s

    def _failure(self, move: DeviceMove, stage: str) -> str:
        last = self._switching.stage(stage).last
        message = last.message if last is not None and last.epoch == move.epoch else ""
        return message or f"it has {self._has(stage)}"

    def _stalled(self, move: DeviceMove) -> float:
        """Seconds for which the ranks of giver and taker stood still, one after the other."""
        lasts = [self._switching.stage(stage).last for stage in move.changes]
        return sum(last.stall_s for last in lasts if last is not None and last.resizes)

    def _has(self, stage: str) -> int:
        return sum(self._switching.devices(stage))

    def _between(self, move: DeviceMove) -> Division:
        """The devices of all stages while nobody has those that move."""
        return tuple(min(pair) for pair in zip(move.before, move.after, strict=True))

    @staticmethod
    def _of(division: Division, stage: str) -> int:
        return by_stage(division)[stage]


def _is_done(move: DeviceMove | None) -> TypeGuard[DeviceMove]:
    """Returns whether a move has ended as asked."""
    return move is not None and not move.running and not move.rolled_back


def moved_text(move: DeviceMove) -> str:
    """A move in words: "rollout 6 → 5, trainer 2 → 4 as dp2·cp2"."""
    before, after = by_stage(move.before), by_stage(move.after)
    return ", ".join(
        f"{stage} {stage_text(before[stage], move.replicas_before.get(stage))} → "
        f"{stage_text(after[stage], move.replicas_after.get(stage))}"
        for stage in move.changes
    )
