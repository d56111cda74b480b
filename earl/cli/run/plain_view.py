"""The view of a running run where there is no terminal: plain lines."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO

from earl.cli.lib.concerns import concerns
from earl.cli.lib.figures import interval
from earl.cli.lib.notices import NOTICE_S
from earl.cli.lib.status_text import (
    clock,
    learning_figures,
    progress_of,
    role_figures,
    shutdown_text,
    start_text,
    time_left,
)
from earl.cli.lib.step_text import step_text
from earl.cli.lib.switches import switch_text
from earl.cli.run.live_view import RunView
from earl.cli.run.run_clock import RunClock
from earl.stack.status import ProcessState, RunStatus

log = logging.getLogger(__name__)

PLAIN_EVERY_S = 2.0
LOGGED_EVERY_S, LOGGED_LONGEST_S = 30.0, 600.0
# States of a process that has begun and is not ready.
BEGUN = ("starting", "restarting")


class PlainView(RunView):
    """A line when something began or ended, and in between, every few seconds, if the line has changed.

    Where it has not, except for the time left, a shorter line tells again and again what the run waits for:
    after NOTICE_S or every_s, whichever is longer, and after twice as long each time, up to longest_s.
    now_s: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        file: IO[str],
        every_s: float = PLAIN_EVERY_S,
        longest_s: float = NOTICE_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._every_s = every_s
        self._notice_s = self._shortest_s = max(every_s, NOTICE_S)
        self._longest_s = max(longest_s, self._shortest_s)
        self._now_s = now_s
        self._clock = RunClock()
        self._reported: dict[str, str] = {}
        self._phase = ""
        self._facts = ""
        self._last_line_at = now_s()

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, processes: Sequence[ProcessState], status: RunStatus) -> None:
        self._clock.update(status.elapsed_s)
        for process in processes:
            if self._reported.get(process.name, "waiting") != process.state:
                self._reported[process.name] = process.state
                self._say(f"{process.name} {process.state}")
        if status.paced and "paced" not in self._reported:
            self._reported["paced"] = status.paced
            self._say(status.paced)
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
        now = self._now_s()
        quiet_s = now - self._last_line_at
        waits = waiting_line(processes)
        if status.phase and (status.phase != self._phase or quiet_s >= self._every_s):
            self._phase = status.phase
            facts = waiting_line(processes, timed=False) or status_line(without_time_left(status))
            if facts != self._facts:
                self._facts, self._last_line_at, self._notice_s = facts, now, self._shortest_s
                self._say(waits or status_line(status))
                return
        if quiet_s >= self._notice_s and (line := waits or progress_line(status)):
            self._last_line_at = now
            self._notice_s = min(2 * self._notice_s, self._longest_s)
            self._say(line)

    def _say(self, text: str) -> None:
        self._file.write(f"[{clock(self._clock.seconds)}] {text}\n")
        self._file.flush()


class LoggedView(PlainView):
    """The same lines as records of the process's log, for a launcher without a terminal.

    A log is kept, so a run that waits for hours gets a line every ten minutes in the end.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(sys.stderr, LOGGED_EVERY_S, LOGGED_LONGEST_S, now_s)

    def _say(self, text: str) -> None:
        log.info("%s", text)


def waiting_line(processes: Sequence[ProcessState], *, timed: bool = True) -> str:
    """Names the processes that the run waits for, with their times if `timed`; "" once all are ready."""
    begun = [
        f"{process.name} ({process.state}{f' {start_text(process)}' if timed else ''})"
        for process in processes
        if process.state in BEGUN
    ]
    return f"waiting for {', '.join(begun)}" if begun else ""


def without_time_left(status: RunStatus) -> RunStatus:
    """The status without what changes while nothing happens."""
    metrics = {name: value for name, value in status.metrics.items() if name != "phase_left_s"}
    return replace(status, metrics=metrics)


def progress_line(status: RunStatus) -> str:
    """A line of what the run waits for, how far it is, how long still; "" before the scheduler answers."""
    return shutdown_text(status) or ", ".join(filter(None, (phase_text(status), step_text(status))))


def phase_text(status: RunStatus) -> str:
    done, total = progress_of(status)
    return f"{status.phase} {done}/{total}{time_left(status)}" if total else status.phase


def status_line(status: RunStatus) -> str:
    """The run in one line."""
    ledger = status.ledger
    parts = [phase_text(status), f"version {status.version}"]
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
    again = f" + trained again {ledger.replayed}" if ledger.replayed else ""
    parts.append(
        f"issued {ledger.issued} = trained {ledger.trained}{again} + evaluated {ledger.evaluated}"
        f" + dropped {ledger.dropped_total} + live {ledger.live}"
    )
    return ", ".join(parts)
