"""Runs the processes that a run's head gives to this Pod: `python -m …kubernetes.slot RUN PROCESS WAIT_S`.

waits for the head ─► takes a job ─► its agent ─► left.json ─► takes the next ─► … ─► the run is over
                         ▲  cancelled, or given another ─┘
ends with code 0 when the run is over, or no head has counted for WAIT_S, and with another when a later
Pod has taken its place, or Kubernetes ends it: then its Job makes another
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from earl.stack.cluster.folder import BEAT_S, ClusterFolder, write
from earl.stack.cluster.kubernetes.slots import PodBeat, SlotFiles
from earl.stack.cluster.names import ORDER_VARIABLE
from earl.stack.run_files import read_object

POLL_S = 0.5
# Beyond the 20 s in which an agent ends its process.
AGENT_END_S = 30.0
REPLACED = 75

RunState = Literal["waits", "runs", "over"]


class Slot:
    """One Pod's process. order: a random name of the order that its Job belongs to. wait_s: bound on the
    time without a head."""

    def __init__(self, folder: ClusterFolder, process: str, order: str, wait_s: float) -> None:
        self._folder = folder
        self._files = SlotFiles(folder, process)
        self._order = order
        self._wait_s = wait_s
        self._beat = PodBeat(
            os.environ.get("EARL_POD_NAME", ""), os.environ.get("EARL_POD_NODE", ""), secrets.token_hex(8), 0
        )
        self._beaten_at = -BEAT_S
        self._began = False
        self._head: tuple[object, float] = (None, time.monotonic())
        self._ending = asyncio.Event()

    async def run(self) -> int:
        """Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._ending.set)
        while True:
            code = self._code()
            if code is not None:
                return code
            job = self._files.job() if self._began else None
            if job is not None and is_open(job):
                await self._run_job(job)
            else:
                await self._pause()

    async def _run_job(self, job: Path) -> None:
        """Runs the agent of a job until that has ended, or the job is no longer this Pod's."""
        write(job / "taken.json", asdict(self._beat))
        agent = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "earl.stack.cluster.agent", str(job), start_new_session=True
        )
        ended = asyncio.create_task(agent.wait())
        while not ended.done() and self._code() is None and self._files.job() == job and is_current(job):
            await self._pause(ended)
        if not ended.done():
            agent.send_signal(signal.SIGTERM)
            await asyncio.wait([ended], timeout=AGENT_END_S)
        if not ended.done():
            agent.kill()  # its warden ends the rest
        leave(job, await ended)

    def _code(self) -> int | None:
        """The code with which this process is to end, None while it is to run; counts on meanwhile."""
        if self._ending.is_set():
            return 128 + signal.SIGTERM
        now = time.monotonic()
        state = run_state(self._folder, self._order, began=self._began)
        if state == "over":
            return 0
        self._began = self._began or (state == "runs" and self._files.path.is_dir())
        head = read_object(self._folder.head)
        if self._began and head != self._head[0]:
            self._head = head, now
        if now - self._head[1] > self._wait_s:
            sys.stderr.write(f"earl: no head of the run has counted for {self._wait_s:g} s: this Pod ends\n")
            return 0
        if self._began and now - self._beaten_at >= BEAT_S:
            there = self._files.beat
            if self._beat.count and there is not None and there.start != self._beat.start:
                sys.stderr.write(f"earl: Pod {there.pod} has taken this one's place\n")
                return REPLACED
            self._beat = replace(self._beat, count=self._beat.count + 1)
            self._files.write_beat(self._beat)
            self._beaten_at = now
        return None

    async def _pause(self, *tasks: asyncio.Task[int]) -> None:
        stop = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait([stop, *tasks], timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()


def run_state(folder: ClusterFolder, order: str, *, began: bool) -> RunState:
    """Tells by the head's job if the run of this order waits for its head, runs, or is over.

    began: its head was there before; then another order's head means that this one is over.
    """
    # A network file system shows new files of a directory that was read anew.
    for directory in (folder.path.parent, folder.path):
        if directory.is_dir():
            list(directory.iterdir())
    job = folder.job
    if job is None or job.order != order:
        return "over" if began else "waits"
    return "over" if job.ended else "runs"


def leave(job: Path, code: int) -> None:
    """Records the exit code of a job's agent, unless the run has ended meanwhile."""
    if job.is_dir():
        write(job / "left.json", {"code": code})


def is_current(job: Path) -> bool:
    return job.is_dir() and not (job / "cancel").exists()


def is_open(job: Path) -> bool:
    """Returns whether a job is still to be run: nobody took it, and nobody cancelled it."""
    return is_current(job) and (job / "order.json").is_file() and not (job / "taken.json").exists()


def main() -> int:
    directory, process, wait_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    slot = Slot(ClusterFolder(directory), process, os.environ.get(ORDER_VARIABLE, ""), wait_s)
    return asyncio.run(slot.run())


if __name__ == "__main__":
    sys.exit(main())
