"""Starts processes as jobs of a cluster's manager, and follows them by their files and the manager's word.

    start ─► folder with the order ─► submit ─► queued ─► placed.json ─► ready.json ─► ended.json
                                          │                                                ▲
                                          └─ the manager: ended or lost, without a file ───┘

A code that a process wrote is the truth; the manager's word counts where there is none, after a while in
which a network file system may still bring it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from earl.errors import EarlError, ProcessFailed, ServiceUnavailable
from earl.stack.cluster.agent import AgentOrder
from earl.stack.cluster.folder import ClusterFolder, append, write
from earl.stack.cluster.manager import ClusterManager, JobRequest, JobSize, JobStatus
from earl.stack.run_files import read_object
from earl.stack.starter import ReadyLine, StartOrder

log = logging.getLogger(__name__)

# How often files are looked at, and how often the manager is called, for all jobs together.
FILES_S, STATES_S = 0.5, 2.0
# For so long a file may still come after the manager reported the end of its job.
LATE_FILE_S = 10.0
KILLED = -int(signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class LaunchOfJobs:
    """The launch that jobs belong to. head: its random name. arenas: the directory of arenas on each node.

    directory: where processes run. python: variables that the interpreter needs to find EARL.
    """

    run: str
    head: str
    directory: str
    arenas: Path
    queue_s: float
    python: Mapping[str, str] = field(default_factory=dict)


class PlacedProcess:
    """A process in a job; the board calls `read_files` and `reported`."""

    pid = 0

    def __init__(self, board: JobBoard, name: str, job: str, folder: Path, log: Path, queue_s: float) -> None:
        self.job = job
        self.name = name
        self.folder = folder
        self._log = log
        self.lost = ""
        self._board = board
        self._queue_s = queue_s
        self._submitted_at = time.monotonic()
        self._status = JobStatus("queued")
        self._placed = asyncio.Event()
        self._ready: asyncio.Queue[ReadyLine] = asyncio.Queue()
        self._agent_ran = False
        self._serves = False
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._gone_at = 0.0

    @property
    def place(self) -> str:
        return f"{self._status.node or 'its node'}, as job {self.job}"

    @property
    def running(self) -> bool:
        return not self._ended.done()

    async def placed(self) -> None:
        started = asyncio.ensure_future(self._placed.wait())
        try:
            left_s = self._queue_s - (time.monotonic() - self._submitted_at)
            await asyncio.wait([started, self._ended], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            started.cancel()
        if not self.running and not self._agent_ran and not self.lost:
            raise ProcessFailed(
                f"{self.name}'s job {self.job} ended before it could begin: {self._status.reason}",
                f"see {self._log}: does {self._status.node or 'its node'} share the run's directory?",
            )
        if not self._placed.is_set() and self.running:
            self._board.cancel(self)
            raise ProcessFailed(
                f"{self.name}'s job {self.job} has waited in the queue for cluster.queue_s = "
                f"{self._queue_s:g} s: {self._status.reason or self._status.phase}",
                "raise cluster.queue_s, or ask for less in [cluster]",
            )

    async def follow(self, ready: Callable[[ReadyLine], None]) -> None:
        while True:
            line = asyncio.ensure_future(self._ready.get())
            await asyncio.wait([line, self._ended], return_when=asyncio.FIRST_COMPLETED)
            if not line.done():
                line.cancel()
                return
            ready(line.result())

    def begin(self, environment: Mapping[str, str]) -> None:
        write(self.folder / "begin.json", environment)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def signal(self, signal_number: int) -> None:
        if not self.running:
            return
        append(self.folder / "signals", str(int(signal_number)))
        if signal_number == signal.SIGKILL or not self._placed.is_set():
            self._board.cancel(self)

    def read_files(self) -> None:
        """Takes over what the agent has written."""
        if not self._placed.is_set() and (self.folder / "placed.json").is_file():
            self._agent_ran = True
            self._placed.set()
        if not self._serves and (report := read_object(self.folder / "ready.json")):
            self._serves = True
            self._ready.put_nowait(ReadyLine(str(report["address"]), str(report["metrics"])))
        if ended := read_object(self.folder / "ended.json"):
            self._end(int(ended["code"]))

    def reported(self, status: JobStatus, now: float) -> None:
        """Takes over what the manager reports."""
        # A place that is found anew for a lost job is not where it was.
        node, self._status = self._status.node or status.node or "its node", status
        if status.phase in ("queued", "running") or not self.running:
            self._gone_at = 0.0
            return
        self._gone_at = self._gone_at or now
        self.read_files()  # it may have written its code since they were read
        if not self.running:
            return
        if status.phase == "lost":
            self.lost = f"job {self.job} on {node} ended as {status.reason}"
        elif now - self._gone_at < LATE_FILE_S:
            return
        log.warning("%s: job %s on %s ended as %s", self.name, self.job, node, status.reason)
        self._end(KILLED)

    def _end(self, code: int) -> None:
        self._placed.set()
        if not self._ended.done():
            self._ended.set_result(code)


class JobBoard:
    """All jobs of a launch; `close` cancels those that still run."""

    def __init__(self, manager: ClusterManager, folder: ClusterFolder, launch: LaunchOfJobs) -> None:
        self._manager = manager
        self._folder = folder
        self._launch = launch
        self._live: list[PlacedProcess] = []
        self._cancels: set[asyncio.Task[None]] = set()
        self._follower: asyncio.Task[None] | None = None
        self._unreachable_since = 0.0

    async def start(self, order: StartOrder, size: JobSize) -> PlacedProcess:
        """Submits a process. Raises ConfigError if the manager refuses the job."""
        launch, path = self._launch, self._folder.add_job()
        agent = AgentOrder(
            order.name, order.arguments, dict(order.environment), launch.directory, str(order.log),
            str(launch.arenas), launch.head, self._manager.name, order.held,
        )  # fmt: skip
        write(path / "order.json", asdict(agent))
        request = JobRequest(
            f"earl-{launch.run}-{order.name}",
            (sys.executable, "-m", "earl.stack.cluster.agent", str(path)),
            str(order.log),
            size,
            variables=launch.python,
        )
        job = await asyncio.to_thread(self._manager.submit, request)
        self._folder.keep_name(job)
        process = PlacedProcess(self, order.name, job, path, order.log, launch.queue_s)
        self._live.append(process)
        if self._follower is None:
            self._follower = asyncio.create_task(self._follow())
        return process

    def cancel(self, process: PlacedProcess) -> None:
        """Cancels a job; its process has ended once the manager reports it."""
        task = asyncio.create_task(asyncio.to_thread(self._cancel, (process.job,)))
        self._cancels.add(task)
        task.add_done_callback(self._cancels.discard)

    def _cancel(self, jobs: tuple[str, ...]) -> None:
        try:
            self._manager.cancel(jobs)
        except EarlError as error:
            log.warning("jobs %s could not be cancelled: %s", " ".join(jobs), error.message)

    async def close(self) -> None:
        """Cancels the jobs that still run."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, *self._cancels, return_exceptions=True)
        if jobs := tuple(process.job for process in self._live if process.running):
            await asyncio.to_thread(self._cancel, jobs)

    async def _follow(self) -> None:
        called_at = 0.0
        while True:
            self._live = [process for process in self._live if process.running]
            await asyncio.to_thread(self._touch)
            for process in self._live:
                process.read_files()
            now = time.monotonic()
            if now - called_at >= STATES_S:
                called_at = now
                await self._report()
            await asyncio.sleep(FILES_S)

    def _touch(self) -> None:
        """Lists the folders: a network file system shows new files of a directory that was read anew."""
        for process in self._live:
            list(process.folder.iterdir())

    async def _report(self) -> None:
        """Asks the manager. One that does not answer changes nothing: jobs are followed by their files."""
        jobs = [process.job for process in self._live]
        try:
            statuses = await asyncio.to_thread(self._manager.statuses, jobs)
        except ServiceUnavailable as error:
            if not self._unreachable_since:
                log.warning("%s; jobs are followed by their files", error.message)
            self._unreachable_since = self._unreachable_since or time.monotonic()
            return
        self._unreachable_since = 0.0
        now = time.monotonic()
        for process in self._live:
            if process.job in statuses:
                process.reported(statuses[process.job], now)
