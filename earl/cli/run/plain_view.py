"""What the person sees of a run where there is no terminal: plain lines."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO

from earl.cli.lib.figures import interval
from earl.cli.lib.switches import switch_text
from earl.cli.run.live_view import LEARNING, clock, progress_of, role_figures
from earl.stack.status import ProcessState, RunStatus

log = logging.getLogger(__name__)

PLAIN_EVERY_S = 2.0
LOGGED_EVERY_S = 30.0


class PlainView:
    """A line when something began or ended, and every few seconds in between."""

    def __init__(self, file: IO[str], every_s: float = PLAIN_EVERY_S) -> None:
        self._file = file
        self._every_s = every_s
        self._started = time.monotonic()
        self._reported: dict[str, str] = {}
        self._phase = ""
        self._last_line_at = 0.0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def update(self, processes: Sequence[ProcessState], status: RunStatus) -> None:
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
        now = time.monotonic()
        if status.phase and (status.phase != self._phase or now - self._last_line_at >= self._every_s):
            self._phase = status.phase
            self._last_line_at = now
            self._say(status_line(status))

    def _say(self, text: str) -> None:
        self._file.write(f"[{clock(time.monotonic() - self._started)}] {text}\n")
        self._file.flush()


class LoggedView(PlainView):
    """The same as records of the process's log, for a launcher that nobody looks at."""

    def __init__(self) -> None:
        super().__init__(sys.stderr, LOGGED_EVERY_S)

    def _say(self, text: str) -> None:
        log.info("%s", text)


def status_line(status: RunStatus) -> str:
    """The run in one line."""
    done, total = progress_of(status)
    ledger = status.ledger
    parts = [f"{status.phase} {done}/{total}" if total else status.phase, f"version {status.version}"]
    parts += [
        f"{label} {form.format(status.metrics[name])}"
        for name, label, form in LEARNING
        if name in ("reward_mean", "win_rate", "tokens_per_s") and name in status.metrics
    ]
    if status.evaluations and status.evaluations[-1].done:
        last = status.evaluations[-1]
        gained = f", gain {interval(last.gain.value, last.gain.bounds, signed=True)}" if last.gain else ""
        parts.append(
            f"{last.name} evaluation {interval(last.win_rate, last.win_bounds)} of {last.done}{gained}"
        )
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
