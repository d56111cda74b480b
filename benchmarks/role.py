"""A process of a benchmark, which reads commands as JSON lines on stdin and answers each on stdout; both its
sides."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.children import process_error, within
from benchmarks.record.checkout import ROOT

ANSWER_S = 120.0
STOP_S = 10.0
# The longest line that a process may answer with.
LINE_BYTES = 1 << 24


class RoleProcess:
    """A process of the benchmark and its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(
        cls,
        module: str,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        start_s: float = ANSWER_S,
        enter: Sequence[str] = (),
        **role: Any,
    ) -> tuple[RoleProcess, dict[str, Any]]:
        """Starts `python -m module`; returns it and its first answer. Raises as `answer`, after ending it.

        enter: what the command begins with, such as that of a host of benchmarks.network.
        """
        process = await asyncio.create_subprocess_exec(
            *enter, python, "-m", module, cwd=ROOT, env=environment, pass_fds=pass_fds,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_BYTES,
        )  # fmt: skip
        made = cls(process)
        try:
            made.tell(**role)
            return made, await made.answer(start_s)
        except BaseException:
            await made.stop()
            raise

    async def ask(self, **work: Any) -> dict[str, Any]:
        """Sends a command and returns its answer. Raises as `answer`."""
        self.tell(**work)
        return await self.answer()

    def tell(self, **work: Any) -> None:
        """Sends a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(work).encode() + b"\n")

    async def answer(self, within_s: float = ANSWER_S) -> dict[str, Any]:
        """The next answer. Raises ProcessFailed when the process ended, DeadlineExceeded."""
        assert self.process.stdout is not None
        async with within(within_s, "an answer of a process of the benchmark"):
            line = await self.process.stdout.readline()
        if not line:
            raise process_error("a process of the benchmark", await self.process.wait())
        return json.loads(line)

    async def stop(self) -> None:
        """Closes its input and waits; kills it when it does not end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


def carry_out(process: Any, work: dict[str, Any]) -> dict[str, Any]:
    """Calls the method that the command names under "do" with the command; returns its answer."""
    return getattr(process, work["do"])(work)


def answer_commands(
    roles: Mapping[str, Callable[[dict[str, Any]], Any]],
    perform: Callable[[Any, dict[str, Any]], dict[str, Any]] = carry_out,
) -> Any:
    """Makes the role that the first line names; answers with what its `start` returns, then each command with
    what `perform` returns, until stdin ends. Returns the role, closed."""
    role = json.loads(sys.stdin.readline())
    process = roles[role["role"]](role)
    answer = process.start()
    while True:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            break
        answer = perform(process, json.loads(line))
    process.close()
    return process
