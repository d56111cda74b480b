"""Starts the processes of a plan, lets each begin when what it needs is ready, keeps them, and ends them.

    one keeper per process:   start ─► needs are ready: begin ─► ready within start_s ─► ... ─► ended
                                ▲                                                               │
                                └────────────── crashed, restartable, tries left ───────────────┤
                                                                                                ▼
                                                                     `failure` is set, with a typed reason

A process that has needs loads what it imports meanwhile (earl.rpc.main.await_peers).

A process that ends before it was ever ready is not tried again: that is a mistake in the run file or
the machine, and its message is the error. One that ends while it is started again, or that the run
can do without, has crashed. What a crashed process started itself is ended before its successor starts.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from earl.config.run import StackConfig
from earl.errors import EarlError, ProcessFailed
from earl.stack import credentials
from earl.stack.plan import VALKEY, ProcessSpec, StackAddresses
from earl.stack.process import StackProcess
from earl.stack.rundir import RunDirectory
from earl.stack.starter import Starter
from earl.stack.status import ProcessState
from earl.stack.warden import MARK_VARIABLE, PROCESS_VARIABLE, SOCKETS_VARIABLE, sweep
from earl.waiting import until_first

# A worker that ends with 0 has seen the end of the run; the launcher sees it within this time.
END_NOTICED_S = 10.0
# Before a restart: doubled with each one.
FIRST_PAUSE_S = 0.5
LAST_PAUSE_S = 30.0
LAST_WORD_S = 1.0


class Supervisor:
    """All processes of one launch."""

    def __init__(
        self,
        specs: Iterable[ProcessSpec],
        directory: RunDirectory,
        addresses: StackAddresses,
        limits: StackConfig,
        usual_s: Mapping[str, float] | None = None,
        starters: Mapping[str, Starter] | None = None,
    ) -> None:
        """usual_s: seconds that processes took to start the last time, by name. starters: of those that are
        no children of this process, by name."""
        self.mark = secrets.token_hex(8)
        # For sockets of the run: their paths must be short. The launcher makes and removes it.
        self.sockets = Path("/tmp") / f"earl-{self.mark}"
        self._starters = starters or {}
        self.processes = {
            spec.name: StackProcess(spec, directory.log(spec.name), self._starters.get(spec.name))
            for spec in specs
        }
        self.failure: asyncio.Future[EarlError] = asyncio.get_running_loop().create_future()
        # Set by the launcher once the scheduler reports the end of the run.
        self.run_ended = asyncio.Event()
        self._addresses = addresses
        self._limits = limits
        self._usual_s = usual_s or {}
        self._stopping = False
        self._keepers: list[asyncio.Task[None]] = []
        self._since = dict.fromkeys(self.processes, time.monotonic())
        self._states: dict[str, str] = {}

    def start(self) -> None:
        """Starts the processes; `states` shows their progress, `failure` an unexpected end."""
        self._keepers = [asyncio.create_task(self._guard(process)) for process in self.processes.values()]
        for keeper in self._keepers:
            keeper.add_done_callback(self._keeper_ended)

    @property
    def all_ready(self) -> bool:
        needed = (process for process in self.processes.values() if not process.spec.expendable)
        return all(process.ready.is_set() for process in needed)

    def states(self) -> list[ProcessState]:
        """Every process, in the order of the plan, with the seconds it has been in its state."""
        now = time.monotonic()
        shown = []
        for name, process in self.processes.items():
            if self._states.get(name) != process.state:
                self._states[name] = process.state
                self._since[name] = now
            seconds = now - self._since[name]
            shown.append(
                ProcessState(
                    name,
                    process.state,
                    seconds,
                    process.restarts,
                    process.pid,
                    expendable=process.spec.expendable,
                    usual_s=self._usual_s.get(name, 0.0),
                    most_s=self._limits.start_s,
                )
            )
        return shown

    def start_seconds(self) -> dict[str, float]:
        """Returns the seconds that each process which is ready, or done, took to start."""
        return {name: process.start_s for name, process in self.processes.items() if process.ready.is_set()}

    # --- keeping ----------------------------------------------------------------------------

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        """A keeper that fails by a mistake of its own must not leave its process unwatched."""
        if not keeper.cancelled() and (error := keeper.exception()) and not self.failure.done():
            self.failure.set_exception(error)

    async def _guard(self, process: StackProcess) -> None:
        try:
            await self._keep(process)
        except EarlError as error:
            self._failed(process, error)
        except OSError as error:
            cause = ProcessFailed(f"{process.spec.name} cannot be started: {error}", f"see {process.log}")
            self._failed(process, cause)

    def _failed(self, process: StackProcess, error: EarlError) -> None:
        process.state = "stopped" if self._stopping else "failed"
        if process.spec.expendable:
            process.note(f"the run continues without it: {error.message}")
        elif not self._stopping and not self.failure.done():
            self.failure.set_result(error)

    async def _keep(self, process: StackProcess) -> None:
        while not self._stopping:
            held = not self._has_needs(process)
            await process.start(self._environment(process), held=held)
            await process.placed()
            begun = not held or await self._until_needs(process)
            served = begun and await self._until_ready(process)
            code = await process.wait()
            if not served:
                ends = process.spec.job or process.spec.may_end_early
                if begun and ends and code == 0:
                    process.become_ready("done")
                    return
                first = not (process.restarts or process.spec.expendable or process.lost)
                if self._stopping or first:
                    raise process.failure(code, "before it was ready")
            elif self._stopping or await self._ended_with_the_run(process, code):
                process.state = "done" if code == 0 else "stopped"
                return
            await self._before_restart(process, code, served=served)

    def _has_needs(self, process: StackProcess) -> bool:
        return all(self.processes[need].ready.is_set() for need in process.spec.needs)

    async def _all_ready(self, names: Iterable[str]) -> None:
        for name in names:
            await self.processes[name].ready.wait()

    async def _until_needs(self, process: StackProcess) -> bool:
        """Lets a process begin once what it needs is ready; False if it ended before that."""
        ready, _ = await until_first(self._all_ready(process.spec.needs), process.wait())
        if ready:
            process.begin(self._peers(process))
        return ready

    async def _until_ready(self, process: StackProcess) -> bool:
        """Waits until a process serves (True) or has ended (False).

        Raises ProcessFailed if neither happens in time.
        """
        limit_s = self._limits.start_s
        ready, ended = await until_first(process.ready.wait(), process.wait(), timeout_s=limit_s)
        if not ready and not ended:
            process.signal(signal.SIGKILL)
            raise ProcessFailed(
                f"{process.spec.name} was not ready within stack.start_s = {limit_s:g} s",
                f"see {process.log}, or raise stack.start_s",
            )
        return ready

    async def _ended_with_the_run(self, process: StackProcess, code: int) -> bool:
        """Returns whether exit code 0 was the end of the run, or of the process's part in it."""
        if code != 0 or not process.spec.ends_with_run:
            return False
        if process.spec.may_end_early:
            return True
        try:
            async with asyncio.timeout(END_NOTICED_S):
                await self.run_ended.wait()
        except TimeoutError:
            return False
        return True

    async def _before_restart(self, process: StackProcess, code: int, *, served: bool) -> None:
        """Counts the crash, ends what the process left behind, and pauses; raises if no restart is left.

        The loss of its machine is no crash: it does not count.
        """
        doing = "although the run had not ended" if code == 0 else "during the run"
        doing = doing if served else "before it was ready again"
        error = process.failure(code, doing)
        final = code in process.spec.verdicts
        spent = process.restarts >= self._limits.restarts and not process.lost
        if final or not process.spec.restartable or spent:
            if process.restarts and not final:
                error.add_note(f"it was started again {process.restarts} times (stack.restarts)")
            raise error
        process.state = "restarting"
        process.ready.clear()
        process.restarts += not process.lost
        process_mark = self._process_mark(process)
        await asyncio.to_thread(sweep, process_mark, variable=PROCESS_VARIABLE, grace_s=0.0)
        count = "" if process.lost else f"restart {process.restarts} of {self._limits.restarts}: "
        process.note(f"{count}{error.message}")
        await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** min(max(process.restarts - 1, 0), 16), LAST_PAUSE_S))

    def _is_elsewhere(self, process: StackProcess) -> bool:
        return process.spec.name in self._starters

    def _process_mark(self, process: StackProcess) -> str:
        return f"{self.mark}:{process.spec.name}"

    def _peers(self, process: StackProcess) -> dict[str, str]:
        """Returns where everything is that the process may know of, as far as it is known."""
        addresses = self._addresses.environment()
        if VALKEY in self.processes:
            addresses["EARL_REDIS_URL"] = self.processes[VALKEY].address
        return credentials.peers(process.spec.role, addresses)

    def _environment(self, process: StackProcess) -> dict[str, str]:
        return {
            **os.environ,
            # Nothing is fetched from a model hub that the run file does not name.
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **self._peers(process),
            **credentials.environment(process.spec.role, calls_teacher=process.spec.calls_teacher),
            # One that runs elsewhere is ended there, by whoever started it there.
            MARK_VARIABLE: self._process_mark(process) if self._is_elsewhere(process) else self.mark,
            PROCESS_VARIABLE: self._process_mark(process),
            SOCKETS_VARIABLE: str(self.sockets),
            "VLLM_RPC_BASE_PATH": str(self.sockets),
        }

    # --- ending -----------------------------------------------------------------------------

    async def wait_ended(self, names: Iterable[str], timeout_s: float) -> bool:
        """Waits until these processes have ended by themselves; whether they did in time."""
        waits = [asyncio.create_task(process.wait()) for process in self._running(names)]
        if not waits:
            return True
        _, late = await asyncio.wait(waits, timeout=timeout_s)
        for wait in late:
            wait.cancel()
        return not late

    async def stop(self, bound_s: float) -> None:
        """Ends everything within about bound_s: SIGTERM rank by rank, SIGKILL for what outlives its share."""
        self._stopping = True
        deadline = time.monotonic() + bound_s
        ranks = sorted({process.spec.stop_rank for process in self.processes.values()})
        for rank in ranks:
            names = [name for name, process in self.processes.items() if process.spec.stop_rank == rank]
            for process in self._running(names):
                process.terminate()
            share_s = max(LAST_WORD_S, (deadline - time.monotonic()) / 2) if bound_s else 0.0
            await self.wait_ended(names, share_s)
            for process in self._running(names):
                process.signal(signal.SIGKILL)
            await self.wait_ended(names, LAST_WORD_S)
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.to_thread(sweep, self.mark, grace_s=0.0)
        for process in self.processes.values():
            if process.state not in ("done", "failed", "waiting"):
                process.state = "stopped"

    def _running(self, names: Iterable[str]) -> list[StackProcess]:
        return [self.processes[name] for name in names if self.processes[name].running]
