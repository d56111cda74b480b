"""One run on this machine, from the run file to the last process gone.

    directory ─► warden ─► processes ─► follow the scheduler ─► run ended ─────────┐
                               │              │ Ctrl-C, SIGTERM ─► StopRun ────────┼─► stop ─► clean
                               └── a process failed for good ──────────────────────┘

However it ends, no process, socket or shared-memory file stays; if the launcher itself is killed,
the warden sees to that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from earl.config.deadlines import checkpoint_bytes, start_seconds
from earl.config.run import RunConfig
from earl.dispatch.memory.arena_file import arena_directory
from earl.errors import DeadlineExceeded, EarlError, ProcessFailed, ServiceUnavailable
from earl.obs.limits import usable_cores
from earl.rpc.access import Access
from earl.rpc.token_file import Role
from earl.stack import credentials, disk_space, plan, teacher_episodes
from earl.stack.auto_dtype import gpu_bytes_here, settle
from earl.stack.begun_bounds import with_begun_bounds
from earl.stack.cluster.heads import leave_cluster
from earl.stack.codec import OperatorClient
from earl.stack.elsewhere import Elsewhere
from earl.stack.ending import recorded_reason, refuse_complete
from earl.stack.endpoints import Endpoints
from earl.stack.imitated import imitated_of, with_measured_score
from earl.stack.launch_guard import LaunchGuard
from earl.stack.placement import VISIBLE, Placement, place
from earl.stack.ports import binds, resolve_all
from earl.stack.predicted_sizes import with_predicted_sizes
from earl.stack.record import LaunchRecorder, read_record
from earl.stack.rundir import RunDirectory, run_path
from earl.stack.start_times import StartTimes
from earl.stack.status import ProcessState, RunStatus
from earl.stack.supervisor import Supervisor
from earl.stack.thread_counts import with_threads
from earl.waiting import until_first

POLL_S = 0.25
START_POLL_S = 0.1
STATUS_S = 5.0
# A scheduler that answers nothing for this long is taken for dead.
ANSWER_S = 60.0

OnUpdate = Callable[[Sequence[ProcessState], RunStatus], None]


@dataclass(frozen=True, slots=True)
class LaunchOutcome:
    """The outcome of a launch. seconds: from `started_at` (time.monotonic) to the end of the run's work.

    begun: False if it was stopped before all processes were ready; a new run left only its logs then. A run
    that is complete has begun, even if its time limit ended it before that.
    """

    directory: Path
    status: RunStatus
    complete: bool
    seconds: float
    begun: bool = True


class Signals:
    """Requests to stop: `stop` is set by the first, `hurry` by the second. by: who made the first."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.by = ""

    def ask(self, by: str) -> None:
        """Called for every Ctrl-C or SIGTERM. by: "Ctrl-C", for example."""
        if self.stop.is_set():
            self.hurry.set()
        self.by = self.by or by
        self.stop.set()

    def rush(self) -> None:
        """Sets both at once, for SIGUSR1: two SIGTERMs may arrive as one, so a program sends this instead."""
        self.stop.set()
        self.hurry.set()


async def launch(
    config: RunConfig,
    *,
    resume: bool,
    started_at: float,
    signals: Signals,
    on_update: OnUpdate,
    on_taken: Callable[[RunDirectory], None] | None = None,
    on_failed: Callable[[str], None] | None = None,
    elsewhere: Elsewhere | None = None,
) -> LaunchOutcome:
    """Runs a whole stack; returns when the run has ended or was stopped, with nothing left running.

    Keys that are left open (a dtype "auto", threads, the longest context, KV, checkpointing, the teacher's
    score) are resolved here, if the caller has not. With teacher.episodes the teacher plays them first, in a
    run of its own. on_taken: called once the run's directory is this launch's. on_failed: called
    with the sentence of `recorded_reason` if it fails once the run has begun. elsewhere: the machines that
    run what computes; without it all runs on this one.
    Raises ConfigError and PortInUse before anything is started, and the typed reason when a process of the
    stack fails for good.
    """
    if elsewhere is None:
        leave_cluster(run_path(config))
    if not resume and teacher_episodes.episodes_missing(config):
        recorded = await _record(config, started_at, signals, on_update)
        if isinstance(recorded, LaunchOutcome):
            return recorded
        config = teacher_episodes.with_episodes(config, recorded)
    before = run_path(config) / "run.json" if resume else None
    config = with_measured_score(config, imitated_of(config, run_path(config)))
    config, _ = with_begun_bounds(config, before)
    config = await asyncio.to_thread(settle, config, before)
    config, placement = await asyncio.to_thread(_sized, config, before, elsewhere)
    launched = resolve(config if elsewhere is None else elsewhere.bound(config))
    credentials.check(launched.scheduler.bind, binds(launched).values())
    with RunDirectory(config, resume=resume) as directory:
        previous = read_record(directory.path) if resume else None
        refuse_complete(config, previous, directory.shown)
        earlier_s = previous.status.elapsed_s if previous is not None else 0.0
        if on_taken is not None:
            on_taken(directory)
        directory.write(config, launched)
        addresses = plan.StackAddresses(launched.scheduler.bind, launched.gateway.bind, config.bus.redis_url)
        starts = StartTimes(config.model)
        specs = plan.placed(plan.plan(launched, directory.run_json), placement, os.environ.get(VISIBLE))
        bounds = config.stack.model_copy(update={"start_s": start_seconds(config, checkpoint_bytes(config))})
        starters = elsewhere.starters([spec.name for spec in specs]) if elsewhere is not None else None
        supervisor = Supervisor(specs, directory, addresses, bounds, starts.last(), starters)
        leaves = (arena_directory(config.data_plane, directory.path), supervisor.sockets)
        recorder = LaunchRecorder(directory.path, supervisor.mark, leaves, started_at, earlier_s)

        def updated(processes: Sequence[ProcessState], status: RunStatus) -> None:
            recorder.update(processes, status)
            on_update(processes, status)

        async with LaunchGuard(supervisor.mark, leaves):
            supervisor.sockets.mkdir(mode=0o700)
            endpoints = Endpoints(directory.path, config.name)
            stack = Launch(launched, supervisor, signals, updated, endpoints, starts, earlier_s)
            try:
                outcome = await stack.run(directory.path, started_at)
            except EarlError as failure:
                error = disk_space.with_disk_full(directory.path, failure)
                if stack.begun or directory.resumed:
                    directory.failed(error)
                    recorder.end("failed")
                    if on_failed is not None:
                        on_failed(recorded_reason(directory.path))
                else:
                    directory.clear()
                raise error from error.__cause__
            finally:
                endpoints.close()
            if not outcome.begun and not directory.resumed:
                directory.clear()
            else:
                recorder.end("complete" if outcome.complete else "stopped")
            return outcome


async def _record(
    config: RunConfig, started_at: float, signals: Signals, on_update: OnUpdate
) -> Path | LaunchOutcome:
    """The file of the episodes that the run's teacher plays; the outcome of their run if that was stopped."""
    ended: list[LaunchOutcome] = []
    update = teacher_episodes.shown_as_start(on_update)

    async def play(run: RunConfig, again: bool) -> bool:
        ended.append(
            await launch(run, resume=again, started_at=started_at, signals=signals, on_update=update)
        )
        return ended[-1].complete

    file = await teacher_episodes.record(teacher_episodes.recording_of(config), play)
    return file if file is not None else dataclasses.replace(ended[-1], begun=False)


def _sized(
    config: RunConfig, before: Path | None, elsewhere: Elsewhere | None
) -> tuple[RunConfig, Placement]:
    """The configuration with the sizes that the machines decide, and the devices of each process."""
    if elsewhere is not None:
        placement, config = elsewhere.placement(config), elsewhere.sized(config)
        return with_predicted_sizes(config, placement, 0, before, elsewhere.memory_bytes), placement
    gpu_bytes = gpu_bytes_here(config)
    placement = place(config, len(gpu_bytes))
    config = with_threads(config, len(gpu_bytes), usable_cores(), before)
    return with_predicted_sizes(config, placement, min(gpu_bytes, default=0), before), placement


def resolve(config: RunConfig) -> RunConfig:
    """The configuration with free ports in place of 0, so that a restarted service keeps its address.

    Rollout workers, trainer and reference stage report their addresses when they join, and every process the
    address of its metrics, so theirs stays 0; a port that the run file names must nevertheless be free.
    Raises ConfigError, PortInUse.
    """
    free = resolve_all(config)
    return config.model_copy(
        update={
            name: getattr(config, name).model_copy(update={"bind": free.get(f"{name}.bind", "")})
            for name in ("scheduler", "gateway", "dashboard")
        }
    )


class Launch:
    """The middle of a launch: everything between the first process started and the last one ended."""

    def __init__(
        self,
        config: RunConfig,
        supervisor: Supervisor,
        signals: Signals,
        on_update: OnUpdate,
        endpoints: Endpoints,
        starts: StartTimes,
        earlier_s: float,
    ) -> None:
        """earlier_s: seconds that earlier launches of the run took."""
        self._was_ready = False
        self._is_complete = False
        self._config = config
        self._supervisor = supervisor
        self._signals = signals
        self._on_update = on_update
        self._endpoints = endpoints
        self._starts = starts
        self._status = RunStatus(run=config.name, elapsed_s=earlier_s)
        self._scheduler = OperatorClient(config.scheduler.bind, Access.of(Role.OPERATOR))
        self._stop_s = config.stack.stop_s

    @property
    def begun(self) -> bool:
        """True once all processes were ready, or the run is complete: its time limit may end it before."""
        return self._was_ready or self._is_complete

    async def run(self, directory: Path, started_at: float) -> LaunchOutcome:
        supervisor = self._supervisor
        supervisor.start()
        follower = asyncio.create_task(self._follow())
        try:
            stops = self._signals.stop.wait(), supervisor.run_ended.wait()
            await until_first(supervisor.failure, follower, *stops)
            seconds = time.monotonic() - started_at
            # Not later: the scheduler reports a run that was asked to stop as ended too.
            self._is_complete = supervisor.run_ended.is_set()
            if supervisor.failure.done():  # first: it explains a scheduler that does not answer
                raise supervisor.failure.result()
            if follower.done():
                follower.result()  # raises the reason for its end
            await self._last_steps(stopped=not self._is_complete)
            if supervisor.failure.done() and not self._signals.hurry.is_set():
                raise supervisor.failure.result()
            return LaunchOutcome(directory, self._status, self._is_complete, seconds, self.begun)
        finally:
            follower.cancel()
            failed = supervisor.failure.done()
            hurried = self._signals.hurry.is_set()
            await supervisor.stop(0.0 if hurried else min(self._stop_s, 5.0) if failed else self._stop_s)
            self._on_update(supervisor.states(), self._status)
            await self._scheduler.close()

    async def _follow(self) -> None:
        """Shows the run's progress; raises ProcessFailed if the scheduler stops answering for ANSWER_S."""
        supervisor = self._supervisor
        answered_s = time.monotonic()
        while True:
            if supervisor.all_ready and not self._was_ready:
                self._was_ready = True
                self._starts.keep(supervisor.start_seconds())
            if supervisor.processes[plan.SCHEDULER].ready.is_set():
                try:
                    self._status = await self._scheduler.status(STATUS_S)
                    answered_s = time.monotonic()
                except (ServiceUnavailable, DeadlineExceeded) as error:
                    if time.monotonic() - answered_s > ANSWER_S:
                        raise ProcessFailed(
                            f"the scheduler has not answered for {ANSWER_S:g} s: {error.message}",
                            f"see {supervisor.processes[plan.SCHEDULER].log}",
                        ) from error
                if self._status.done:
                    supervisor.run_ended.set()
            else:
                answered_s = time.monotonic()
            processes = supervisor.processes.items()
            self._endpoints.show({name: process.metrics for name, process in processes})
            self._on_update(supervisor.states(), self._status)
            await asyncio.sleep(POLL_S if self._was_ready else START_POLL_S)

    async def _last_steps(self, *, stopped: bool) -> None:
        """Lets the workers end by themselves (the trainer saves), bounded, then takes the last status."""
        supervisor = self._supervisor
        if not supervisor.processes[plan.SCHEDULER].ready.is_set():
            return
        workers = [name for name, process in supervisor.processes.items() if process.spec.ends_with_run]
        await until_first(self._end_run(stopped, workers), self._signals.hurry.wait(), supervisor.failure)

    async def _end_run(self, stopped: bool, workers: list[str]) -> None:
        try:
            if stopped:
                await self._scheduler.stop_run(f"stopped by {self._signals.by or 'its operator'}", STATUS_S)
            await self._supervisor.wait_ended(workers, self._stop_s)
            self._status = await self._scheduler.status(STATUS_S)
        except EarlError as error:
            message = f"the request to end the run failed: {error.message}"
            self._status = dataclasses.replace(self._status, message=message)
