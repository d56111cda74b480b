"""A process of a benchmark, told its work as JSON lines on stdin, answering with one each on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.children import ended, within
from benchmarks.record.checkout import ROOT

ANSWER_S = 120.0
STOP_S = 10.0
# The longest line that a process may answer with.
LINE_BYTES = 1 << 24


class Role:
    """One process of the benchmark."""

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
        **role: Any,
    ) -> tuple[Role, dict[str, Any]]:
        """`python -m module`, and what it says once it is ready. Raises as `answer`, the process ended."""
        process = await asyncio.create_subprocess_exec(
            python, "-m", module, cwd=ROOT, env=environment, pass_fds=pass_fds,
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
        """One line there, one line back. Raises as `answer`."""
        self.tell(**work)
        return await self.answer()

    def tell(self, **work: Any) -> None:
        """One line there."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(work).encode() + b"\n")

    async def answer(self, within_s: float = ANSWER_S) -> dict[str, Any]:
        """The next line. Raises ProcessFailed when the process ended, DeadlineExceeded."""
        assert self.process.stdout is not None
        async with within(within_s, "an answer of a process of the benchmark"):
            line = await self.process.stdout.readline()
        if not line:
            raise ended("a process of the benchmark", await self.process.wait())
        return json.loads(line)

    async def stop(self) -> None:
        """End its input and wait; kill it when it stays."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
