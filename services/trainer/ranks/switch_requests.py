"""Switches that were asked for: the newest waits for a boundary, one runs, the last outcome is kept.

    RPC ─ ask ─► waiting ─ begin: the loop, at a boundary ─► running ─ end ─► the caller
                    └─ withdraw: too late; a newer one came; the stage leaves ─► rolled back

Promise: an epoch is carried out at most once, and a caller that repeats it gets the same outcome; an older
epoch is refused, whatever its outcome.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from earl.errors import DeadlineExceeded
from earl.parallelism import Parallelism
from earl.reparallelize import CommandSlot, SwitchCommand, SwitchOutcome

# Beyond the deadlines of a switch's stages: what ranks need to agree on each.
SLACK_S = 5.0


@dataclass(frozen=True, slots=True)
class _SwitchRequest:
    command: SwitchCommand
    outcome: concurrent.futures.Future[SwitchOutcome] = field(default_factory=concurrent.futures.Future)


class SwitchRequests:
    """The switch requests to one stage's group of ranks; on rank 0, from any thread.

    parallelism: of the group now; epoch: of the switch that brought it there, 0 as the group started. legal:
    raises IllegalParallelism for what the group cannot become.
    """

    def __init__(self, parallelism: Parallelism, legal: Callable[[Parallelism], None]) -> None:
        self.parallelism = parallelism
        self.epoch = 0
        self._legal = legal
        self._lock = threading.Lock()
        self._waiting: _SwitchRequest | None = None
        self._running: _SwitchRequest | None = None
        self._commands: CommandSlot[concurrent.futures.Future[SwitchOutcome]] = CommandSlot()

    async def carried_out(self, command: SwitchCommand) -> SwitchOutcome:
        """Asks for a switch and waits for its end; one that no boundary came for in time is withdrawn.

        Cancelling the wait stops no switch. Raises StaleEpoch, IllegalParallelism, DeadlineExceeded.
        """
        outcome = asyncio.wrap_future(self.ask(command))
        prepare_s = command.deadlines.prepare_s
        done, _ = await asyncio.wait([outcome], timeout=prepare_s)
        if not done:
            self.withdraw(command.epoch, f"no step boundary came within {prepare_s:g} s")
            end_s = command.deadlines.total_s + SLACK_S
            done, _ = await asyncio.wait([outcome], timeout=end_s)
            if not done:
                raise DeadlineExceeded(
                    f"epoch {command.epoch} has begun, and not ended within {end_s:g} s",
                    "send the same command again to learn its outcome",
                )
        return outcome.result()

    def ask(self, command: SwitchCommand) -> concurrent.futures.Future[SwitchOutcome]:
        """The outcome of a command, or of the same command that came before.

        Raises StaleEpoch, IllegalParallelism.
        """

        def begin(_newest: SwitchCommand | None) -> concurrent.futures.Future[SwitchOutcome]:
            self._legal(command.parallelism)
            if self._waiting is not None:
                self._withdraw(f"epoch {command.epoch} came before there was a boundary")
            self._waiting = _SwitchRequest(command)
            return self._waiting.outcome

        with self._lock:
            return self._commands.accept(command, begin)

    @property
    def waiting(self) -> bool:
        """Returns whether a command waits for a boundary."""
        return self._waiting is not None

    def begin(self) -> SwitchCommand | None:
        """Takes the command that waits, to be carried out now."""
        with self._lock:
            self._running, self._waiting = self._waiting, None
            return self._running.command if self._running is not None else None

    def end(self, outcome: SwitchOutcome) -> None:
        """Records the outcome of the command that was begun."""
        with self._lock:
            assert self._running is not None
            if not outcome.rolled_back:
                self.parallelism, self.epoch = outcome.parallelism, outcome.epoch
            self._running.outcome.set_result(outcome)
            self._running = None

    def withdraw(self, epoch: int, reason: str) -> bool:
        """Rolls a command back that has not begun; False if it has begun or is not known."""
        with self._lock:
            if self._waiting is None or self._waiting.command.epoch != epoch:
                return False
            self._withdraw(reason)
            return True

    def close(self, reason: str) -> None:
        """Ends waiting requests: no step boundary comes any more."""
        with self._lock:
            if self._waiting is not None:
                self._withdraw(reason)

    def _withdraw(self, reason: str) -> None:
        assert self._waiting is not None
        withdrawn, self._waiting = self._waiting, None
        withdrawn.outcome.set_result(
            SwitchOutcome(
                epoch=withdrawn.command.epoch,
                parallelism=self.parallelism,
                rolled_back=True,
                message=reason,
                seconds=time.monotonic() - withdrawn.command.requested_s,
            )
        )
