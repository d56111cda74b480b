"""Tells workers how to be cut: a task for every command that stands, none for one that does not.

    Switching.advance ─► commands ─► stored ─► a call each ─► answered, failed ─► Switching
                                                  └─ silent: the same again, until the command stands no more

Every call has a deadline; a worker that repeats a command it knows gives the outcome that it had.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from earl.errors import EarlError
from earl.obs.tracing import within
from earl.rpc.access import Access
from services.scheduler.api.codec_stages import Bounds, Refused, Silent, tell
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.state.switch_records import Answer, Command, Ended
from services.scheduler.wakeup import Bell

TICK_S = 0.1
# Between two calls of the same command.
AGAIN_S = 0.5

Tell = Callable[[Command, Bounds, Access, float], Awaitable[Answer]]


class Driver:
    """Carries out what Switching wants.

    durable: waits until all that was decided is stored. ended: told of switches that are over.
    traceparent: of a stage's switch with an epoch; "" where nothing is traced.
    """

    def __init__(
        self,
        switching: Switching,
        bounds: Bounds,
        access: Access,
        *,
        call_s: float,
        durable: Callable[[], Awaitable[None]],
        ended: Callable[[Sequence[Ended]], None],
        tell: Tell = tell,
        traceparent: Callable[[str, int], str] = lambda stage, epoch: "",
    ) -> None:
        self._switching = switching
        self._bounds = bounds
        self._access = access
        self._call_s = call_s
        self._durable = durable
        self._ended = ended
        self._tell = tell
        self._traceparent = traceparent
        self._bell = Bell()
        self._tasks: dict[Command, asyncio.Task[None]] = {}

    def ring(self) -> None:
        """Something was asked for: look at once."""
        self._bell.ring()

    async def run(self) -> None:
        """Works until cancelled. Raises what storing failed with."""
        try:
            while True:
                ended = self._switching.advance(time.monotonic())
                commands = self._switching.commands(time.monotonic())
                if ended or any(command not in self._tasks for command in commands):
                    await self._durable()
                self._ended(ended)
                self._follow(commands)
                await self._bell.wait(TICK_S)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, commands: Sequence[Command]) -> None:
        standing = set(commands)
        for command in [one for one in self._tasks if one not in standing]:
            self._tasks.pop(command).cancel()
        for command in standing - self._tasks.keys():
            self._tasks[command] = asyncio.create_task(self._command(command))

    async def _command(self, command: Command) -> None:
        """Until something was answered, however long: Switching knows when its time is over."""
        while True:
            try:
                with within(self._traceparent(command.stage, command.epoch)):
                    answer = await self._tell(command, self._bounds, self._access, self._call_s)
                self._switching.answered(command, answer, time.monotonic())
            except Silent:
                await asyncio.sleep(AGAIN_S)
                continue
            except Refused as error:
                self._switching.failed(command, str(error), time.monotonic())
            except EarlError as error:
                self._switching.failed(command, f"{type(error).__name__}: {error}", time.monotonic())
            self._bell.ring()
            return
