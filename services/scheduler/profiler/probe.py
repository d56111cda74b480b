"""A stage's probe (earl.profiling) as a process: started for some points, asked for one window at a time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from earl.errors import DeadlineExceeded, OutOfMemory, ProcessFailed
from earl.profiling import ProfileJob, ProfileSample, Visit, decode, encode
from earl.waiting import deadline

MODULES = {
    "rollout": "services.rollout.probe",
    "reference": "services.trainer.probe",
    "trainer": "services.trainer.probe",
}
# Bounds of a start and of leaving.
START_S = 300.0
STOP_S = 20.0
# So much of its log is quoted when it fails.
LOG_LINES = 20


class StageProbe:
    """Methods raise OutOfMemory where a point does not fit, ProcessFailed or DeadlineExceeded otherwise."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, log: Path) -> None:
        self._process, self._name, self._log = process, name, log

    @classmethod
    async def start(cls, job: ProfileJob, directory: Path) -> StageProbe:
        """Returns once it is ready. directory: for its job and its log, which stay there."""
        name = f"{job.stage}-dp{job.dp}-tp{job.tp}-cp{job.cp}"
        file, log = directory / f"{name}.json", directory / f"{name}.log"
        file.write_text(encode(job), encoding="utf-8")
        with log.open("a", encoding="utf-8") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", MODULES[job.stage], "--job", str(file),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stderr,
                start_new_session=True,
            )  # fmt: skip
        probe = cls(process, name, log)
        try:
            await probe._answer(START_S)
        except BaseException:
            await probe.stop()
            raise
        return probe

    async def visit(self, visit: Visit, deadline_s: float) -> ProfileSample:
        """Measures one window."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # it ended: its exit code tells why
            self._process.stdin.write(encode(visit).encode())
            await self._process.stdin.drain()
        return decode(ProfileSample, await self._answer(deadline_s))

    async def _answer(self, deadline_s: float) -> bytes:
        assert self._process.stdout is not None
        text = f"{self._name} did not answer in {deadline_s:g} s"
        async with deadline(deadline_s, DeadlineExceeded(text, "measure shorter or fewer sequences")):
            line = await self._process.stdout.readline()
            if line.endswith(b"\n"):
                return line
            code = await self._process.wait()
        if code in (OutOfMemory.exit_code, -signal.SIGKILL):
            raise OutOfMemory(f"{self._name} ran out of memory", "give it a shorter context or more memory")
        failure = ProcessFailed(f"{self._name} ended with exit code {code}", "its last words are above")
        failure.add_note("\n".join(self._log.read_text(encoding="utf-8").splitlines()[-LOG_LINES:]))
        raise failure

    async def stop(self) -> None:
        """Ends its input, and waits; what stays is killed with all that it started in its session."""
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
