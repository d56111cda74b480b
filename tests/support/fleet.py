"""A run as an operator asks it, with the means to kill its processes: for drills."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from earl.cli.lib.find_run import with_run
from earl.errors import DeadlineExceeded, ServiceUnavailable
from earl.parallelism import Parallelism
from earl.stack.codec import OperatorClient
from earl.stack.status import DeviceMoveState, RunStatus, StageState
from tests.support.launched import Launched
from tests.support.preloaded import started_by

ANSWER_S = 20.0
SETTLE_S = 90.0


class Fleet:
    """A run as an operator sees it, with the means to kill its processes."""

    def __init__(self, launched: Launched) -> None:
        self._launched = launched
        self._directory = launched.run_directory

    def status(self) -> RunStatus:
        return with_run(self._directory, lambda scheduler: scheduler.status(ANSWER_S))

    def stage(self, name: str) -> StageState:
        return next(stage for stage in self.status().stages if stage.name == name)

    def ask(self, stage: str, tp: int) -> int:
        """Asks for a switch without waiting for it; its epoch."""

        async def asked(scheduler: OperatorClient) -> int:
            epoch, _ = await scheduler.set_parallelism(
                stage, {"tp": tp}, pin=True, wait_s=0.0, deadline_s=ANSWER_S
            )
            return epoch

        return with_run(self._directory, asked)

    def settled(self, stage: str, epoch: int) -> StageState:
        """The stage once that switch has ended and a step was trained after it; fails if neither comes."""
        ends, state, since = time.monotonic() + SETTLE_S, None, -1
        while time.monotonic() < ends:
            try:
                status = self.status()
            except (ServiceUnavailable, DeadlineExceeded):  # it may be what was killed
                time.sleep(0.1)
                continue
            # A stage is listed while it has a worker.
            state = next((one for one in status.stages if one.name == stage), None)
            last = state.last if state is not None and state.switching is None else None
            if state is not None and state.running and last is not None and last.epoch >= epoch:
                if since >= 0 and status.version > since:
                    return state
                since = status.version if since < 0 else min(since, status.version)
            time.sleep(0.1)
        pytest.fail(f"{stage} did not settle: {state}; the run said:\n{self._launched.said}")

    def move(self, giver: str, taker: str, devices: int) -> int:
        """Asks for a move of devices without waiting for it; its number."""

        async def asked(scheduler: OperatorClient) -> DeviceMoveState | None:
            return await scheduler.move_devices(giver, taker, devices, wait_s=0.0, deadline_s=ANSWER_S)

        begun = with_run(self._directory, asked)
        assert begun is not None, "there is nothing to move"
        return begun.number

    def moved(self, number: int) -> DeviceMoveState:
        """The move once it has ended, all stages work with what they hold, and a step was trained after it;
        fails if that does not come."""
        ends, since, status = time.monotonic() + SETTLE_S, -1, RunStatus()
        while time.monotonic() < ends:
            try:
                status = self.status()
            except (ServiceUnavailable, DeadlineExceeded):  # it may be what was killed
                time.sleep(0.1)
                continue
            move, running = status.move, {stage.name: stage.running for stage in status.stages}
            if move is not None and move.number >= number and not move.running:
                held = {stage: str(Parallelism(devices)) for stage, devices in move.holds.items()}
                if running == held:
                    if since >= 0 and status.version > since:
                        return move
                    since = status.version if since < 0 else min(since, status.version)
            time.sleep(0.1)
        pytest.fail(f"move {number} did not end: {status}; the run said:\n{self._launched.said}")

    def process(self, part: str) -> psutil.Process:
        """The process with `part` in its command line, once it is there: it may have been killed just now."""
        ends = time.monotonic() + SETTLE_S
        while not (pids := [pid for pid, command in self._launched.processes().items() if part in command]):
            if time.monotonic() > ends:
                pytest.fail(f"no process of {part} came back; the run said:\n{self._launched.said}")
            time.sleep(0.05)
        return psutil.Process(min(pids))

    def kill(self, part: str, child: int | None) -> None:
        """SIGKILL to the process with `part` in its command line, or to that one of its descendants."""
        process = self.process(part)
        if child is not None:
            below = [*process.children(recursive=True), *started_by(process.pid)]
            born = sorted(below, key=lambda one: one.create_time())
            process = born[child]
        os.kill(process.pid, signal.SIGKILL)
