"""Commands rollout workers to sleep and to wake, as DeviceTurns decides.

    DeviceTurns.commands ─► a call to each worker ─► followed ─► the trainer's call that waits for a batch
          ▲                          └─ failed: again, while the worker takes part and the turn lasts
          └── the trainer asks for a batch, a worker joins or is gone

Every call has a deadline. A worker that cannot follow ends, or its membership does: nobody waits for it then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from earl.errors import EarlError
from services.scheduler.parallelism.device_turns import DeviceTurns, TurnCommand
from services.scheduler.state.workers import WorkerRecord
from services.scheduler.wakeup import Wakeup

log = logging.getLogger(__name__)

# How often the workers are looked through while nothing happens, and the pause after a call that failed.
TICK_S = 0.5


@dataclass(eq=False)
class TurnDriver:
    """Carries out the turns. workers: those that take part now. send: commands one worker, and returns when
    it has followed; raises EarlError. followed: called after each of them."""

    turns: DeviceTurns
    workers: Callable[[], Iterable[WorkerRecord]]
    send: Callable[[TurnCommand], Awaitable[None]]
    followed: Callable[[], None]
    _changed: Wakeup = field(default_factory=Wakeup, init=False)
    _tasks: dict[TurnCommand, asyncio.Task[None]] = field(default_factory=dict, init=False)

    def wake(self) -> None:
        """Something was decided: carries it out now rather than at the next tick."""
        self._changed.notify()

    async def run(self) -> None:
        """Works until cancelled."""
        try:
            while True:
                open_commands = set(self.turns.commands(self.workers()))
                for command in self._tasks.keys() - open_commands:
                    self._tasks.pop(command).cancel()
                for command in open_commands - self._tasks.keys():
                    self._tasks[command] = asyncio.create_task(self._deliver(command))
                await self._changed.wait(TICK_S)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver(self, command: TurnCommand) -> None:
        while True:
            try:
                await self.send(command)
            except EarlError as error:
                log.warning(
                    "worker %s has not followed turn %d: %s", command.worker.name, command.turn, error
                )
                await asyncio.sleep(TICK_S)
                continue
            self.turns.followed(command)
            self.followed()
            return
