"""Sends workers their switch commands: a task for every open command, and for no other.

    Switching.advance ─► commands ─► stored ─► a call each ─► answered, failed ─► Switching
                                                  └─ no answer: the same again, while the command is open

Every call has a deadline; a worker that gets a command again answers with the outcome that it had.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from earl.errors import EarlError
from earl.obs.tracing import within
from earl.reparallelize import SwitchOutcome
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.parallelism.worker_client import NoAnswer, SwitchRefused
from services.scheduler.state.switch_records import SwitchEnded, WorkerCommand
from services.scheduler.wakeup import Wakeup

TICK_S = 0.1
# Between two calls of the same command.
AGAIN_S = 0.5


@dataclass(eq=False)
class SwitchDriver:
    """Carries out what Switching decides.

    send: sends one command to its worker and returns the outcome; raises as worker_client.send does. durable:
    waits until all that was decided is stored. ended: called with the switches that have ended. moves: takes
    the next step of a move of devices, at a time. traceparent: of a stage's switch with an epoch; "" where
    nothing is traced.
    """

    switching: Switching
    send: Callable[[WorkerCommand], Awaitable[SwitchOutcome]]
    durable: Callable[[], Awaitable[None]]
    ended: Callable[[Sequence[SwitchEnded]], None]
    moves: Callable[[float], None] = lambda now: None
    traceparent: Callable[[str, int], str] = lambda stage, epoch: ""
    _changed: Wakeup = field(default_factory=Wakeup, init=False)
    _tasks: dict[WorkerCommand, asyncio.Task[None]] = field(default_factory=dict, init=False)

    def wake(self) -> None:
        """Something was decided: carries it out now rather than at the next tick."""
        self._changed.notify()

    async def run(self) -> None:
        """Works until cancelled. Raises what storing failed with."""
        try:
            while True:
                ended = self.switching.advance(time.monotonic())
                self.moves(time.monotonic())
                commands = self.switching.commands(time.monotonic())
                if ended or any(command not in self._tasks for command in commands):
                    await self.durable()
                self.ended(ended)
                self._follow(commands)
                await self._changed.wait(TICK_S)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, commands: Sequence[WorkerCommand]) -> None:
        standing = set(commands)
        for command in self._tasks.keys() - standing:
            self._tasks.pop(command).cancel()
        for command in standing - self._tasks.keys():
            self._tasks[command] = asyncio.create_task(self._deliver(command))

    async def _deliver(self, command: WorkerCommand) -> None:
        """Sends until there is an answer, however long: Switching decides when it is too late."""
        while True:
            try:
                with within(self.traceparent(command.stage, command.switch.epoch)):
                    outcome = await self.send(command)
                self.switching.answered(command, outcome, time.monotonic())
            except NoAnswer:
                await asyncio.sleep(AGAIN_S)
                continue
            except SwitchRefused as error:
                self.switching.failed(command, str(error), time.monotonic())
            except EarlError as error:
                self.switching.failed(command, f"{type(error).__name__}: {error}", time.monotonic())
            self._changed.notify()
            return
