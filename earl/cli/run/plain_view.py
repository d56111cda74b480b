"""The view of a running run where there is no terminal: plain lines."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Sequence
from typing import IO

from earl.cli.lib.concerns import concerns
from earl.cli.lib.figures import interval
from earl.cli.lib.notices import NOTICE_S
from earl.cli.lib.status_text import clock, learning_figures, progress_of, role_figures, time_left
from earl.cli.lib.switches import switch_text
from earl.cli.run.live_view import RunView
from earl.cli.run.run_clock import RunClock
from earl.stack.status import ProcessState, RunStatus

log = logging.getLogger(__name__)

PLAIN_EVERY_S = 2.0
LOGGED_EVERY_S = 30.0
# States of a process that has begun and is not ready.
BEGUN = ("starting", "restarting")


class PlainView(RunView):
    """A line when something began or ended, and in between, every few seconds, if the line has changed."""

    def __init__(self, file: IO[str], every_s: float = PLAIN_EVERY_S) -> None:
        self._file = file
        self._every_s = every_s
        self._clock = RunClock()
        self._reported: dict[str, str] = {}
        self._phase = ""
        self._line = ""
        self._last_line_at = time.monotonic()

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, processes: Sequence[ProcessState], status: RunStatus) -> None:
        self._clock.update(status.elapsed_s)
        for process in processes:
            if self._reported.get(process.name, "waiting") != process.state:
                self._reported[process.name] = process.state
                self._say(f"{process.name} {process.state}")
        for stage in status.stages:
            if stage.chosen and self._reported.get(f"{stage.name} should be") != stage.chosen:
                self._reported[f"{stage.name} should be"] = stage.chosen
                self._say(stage.sentence)
            for switch, runs in ((stage.switching, True), (stage.last, False)):
                key = f"{stage.name} {'switches' if runs else 'switched'}"
                if switch is not None and self._reported.get(key) != str(switch.epoch):
                    self._reported[key] = str(switch.epoch)
                    self._say(f"{stage.name} {switch_text(switch, runs=runs)}")
        for concern in concerns(status.workers):
            key = re.sub(r"\d+", "0", concern)  # said once, whatever the figures in it
            if key not in self._reported:
                self._reported[key] = concern
                self._say(concern)
        now = time.monotonic()
        if status.phase and (status.phase != self._phase or now - self._last_line_at >= self._every_s):
            self._phase = status.phase
            line = waiting_line(processes) or status_line(status)
            if line != self._line:
                self._line, self._last_line_at = line, now
                self._say(line)
        elif now - self._last_line_at >= max(self._every_s, NOTICE_S) and (line := waiting_line(processes)):
            self._last_line_at = now  # before the scheduler answers
            self._say(line)

    def _say(self, text: str) -> None:
        self._file.write(f"[{clock(self._clock.seconds)}] {text}\n")
        self._file.flush()


class LoggedView(PlainView):
    """The same lines as records of the process's log, for a launcher without a terminal."""

    def __init__(self) -> None:
        super().__init__(sys.stderr, LOGGED_EVERY_S)

    def _say(self, text: str) -> None:
        log.info("%s", text)


def waiting_line(processes: Sequence[ProcessState]) -> str:
    """Names the processes that the run waits for; "" once every process is ready."""
    begun = [
        f"{process.name} ({process.state} {process.seconds:.0f} s)"
        for process in processes
        if process.state in BEGUN
    ]
    return f"waiting for {', '.join(begun)}" if begun else ""


def status_line(status: RunStatus) -> str:
    """The run in one line."""
    done, total = progress_of(status)
    ledger = status.ledger
    progress = f"{status.phase} {done}/{total}{time_left(status)}" if total else status.phase
    parts = [progress, f"version {status.version}"]
    parts += [
        f"{label} {text}"
        for name, label, text in learning_figures(status)
        if name in ("reward_mean", "win_rate", "tokens_per_s")
    ]
    if status.evaluations and status.evaluations[-1].done:
        last = status.evaluations[-1]
        gained = f", gain {interval(last.gain.value, last.gain.bounds, signed=True)}" if last.gain else ""
        result = interval(last.mean_reward, last.reward_bounds)
        if status.has_winners:
            result = interval(last.win_rate, last.win_bounds)
        parts.append(f"{last.name} evaluation {result} of {last.done}{gained}")
    # What the trainer has done is part of the ledger's line.
    parts += [
        f"{role.name} " + " ".join(f"{count} {word}" for word, count, _ in role_figures(role))
        for role in status.roles
        if role.name != "trainer"
    ]
    parts.append(
        f"issued {ledger.issued} = trained {ledger.trained} + evaluated {ledger.evaluated}"
        f" + dropped {ledger.dropped_total} + live {ledger.live}"
    )
    return ", ".join(parts)
