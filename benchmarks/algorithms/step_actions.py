"""Actions on a run in progress, each once its step has been trained: an operator's switches, and kills.

metrics.jsonl ─► the step's line ─► action ─► the next one
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from earl.cli.lib.find_run import with_run
from earl.errors import EarlError, ProcessFailed
from earl.obs.tail import Tail
from earl.stack.record import read_record

POLL_S = 0.05
CALL_S = 30.0
# For a process to be in the launch's record again after it was restarted.
FIND_S = 60.0


@dataclass(frozen=True, slots=True)
class StepAction:
    """act: called with the run's directory once this step of training has ended, the first being 1."""

    step: int
    act: Callable[[Path], None]


class StepActions(threading.Thread):
    """Carries actions out while a run works. failures: what went wrong, and actions that came to nothing."""

    def __init__(self, directory: Path, actions: Sequence[StepAction]) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self._waiting = sorted(actions, key=lambda action: action.step)
        self._ended = threading.Event()
        self.failures: list[str] = []

    def run(self) -> None:
        tail, trained = Tail(self._directory / "metrics.jsonl"), 0
        while self._waiting and not self._ended.wait(POLL_S):
            trained = max([trained, *(line["step"] for line in tail.read() if line.get("phase") == "train")])
            if trained < self._waiting[0].step:
                continue
            action = self._waiting.pop(0)
            try:
                action.act(self._directory)
            except (EarlError, OSError) as error:
                self.failures.append(f"after step {action.step}: {error}")

    def end(self) -> list[str]:
        """The run has ended: returns what went wrong."""
        self._ended.set()
        self.join()
        missed = [f"the run ended before step {action.step} had" for action in self._waiting]
        return [*self.failures, *missed]


def kill(name: str) -> Callable[[Path], None]:
    """SIGKILL to this process of the run. Raises ProcessFailed if the run has none that works."""

    def act(directory: Path) -> None:
        pause, waited_s = threading.Event(), 0.0
        while waited_s < FIND_S:
            record = read_record(directory)
            states = record.processes if record is not None else ()
            if pids := [state.pid for state in states if state.name == name and state.state == "ready"]:
                os.kill(pids[0], signal.SIGKILL)
                return
            pause.wait(POLL_S)
            waited_s += POLL_S
        raise ProcessFailed(f"{name} of {directory} is not running", "see its log")

    return act


def switch(stage: str, **degrees: int) -> Callable[[Path], None]:
    """An operator's switch, as by `earl parallelism set --pin --no-wait`."""

    def act(directory: Path) -> None:
        with_run(
            directory,
            lambda client: client.set_parallelism(stage, degrees, pin=True, wait_s=0.0, deadline_s=CALL_S),
        )

    return act
