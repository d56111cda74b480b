"""A service in a process of its own, started as the launcher starts it: what a benchmark measures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from benchmarks.children import process_error, within
from benchmarks.record.checkout import ROOT

READY_S = 60.0
STOP_S = 10.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class ServiceProcess:
    """A service process that has reported its address."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    @classmethod
    async def start(cls, module: str, run: Path, name: str, **environment: str) -> ServiceProcess:
        """`python -m module --run run --name name`; arguments may stand in module, separated by spaces.

        Raises ProcessFailed when it ends, DeadlineExceeded when it is not ready in time.
        """
        with (run.parent / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *module.split(), "--run", str(run), "--name", name,
                cwd=ROOT, env={**os.environ, **environment}, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        try:
            assert process.stdout is not None
            async with within(READY_S, f"the start of {name}"):
                line = await process.stdout.readline()
            if not line:
                output = (run.parent / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                raise process_error(name, await process.wait(), output)
            return cls(process, json.loads(line)["address"])
        except BaseException:
            if process.returncode is None:
                process.kill()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def rss_mib(self) -> float:
        return rss_mib(self.pid)

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    async def stop(self) -> None:
        """Sends SIGTERM and waits; kills it when it does not end or is frozen."""
        if self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


def rss_mib(pid: int) -> float:
    """Memory that a process has in core, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise process_error(f"process {pid}", "no memory left", remedy="see its log, or what it said above")


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
