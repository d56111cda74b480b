"""The time that `earl` takes for the commands that are typed all the time: --help, status, top."""

from __future__ import annotations

import os
import pty
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from earl.errors import ProcessFailed

# Times that a command is typed, and seconds in which `earl top` shows a run.
TYPED, TOP_S = 5, 30.0


def every_day(earl: Path, clone: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """help_s, status_s and top_core: of commands that are typed all the time."""

    def typed(*arguments: str) -> float:
        began_s = time.monotonic()
        command = [earl, *arguments]
        done = subprocess.run(
            command,
            cwd=clone,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            last = done.stdout.strip().rpartition("\n")[2]
            raise ProcessFailed(
                f"`earl {' '.join(arguments)}` ended with {done.returncode}: {last}",
                "nothing was written; type it in a clone of your own",
            )
        return time.monotonic() - began_s

    help_s = statistics.median(typed("--help") for _ in range(TYPED))
    typed("up", "examples/tictactoe.toml")
    try:
        status_s = statistics.median(typed("status") for _ in range(TYPED))
        top_core = watched(earl, clone, environment)
    finally:
        typed("down", "--now")
    return {"help_s": round(help_s, 3), "status_s": round(status_s, 3), "top_core": round(top_core, 4)}


def watched(earl: Path, clone: Path, environment: Mapping[str, str]) -> float:
    """Processor time of `earl top` on a terminal of its own, after its start, as a fraction of one core."""
    master, terminal = pty.openpty()
    screen = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    top = subprocess.Popen(
        [earl, "top"], cwd=clone, env={**environment, **screen}, stdin=terminal, stdout=terminal,
        stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    os.set_blocking(master, False)
    try:
        _read_for(master, TOP_S / 3)
        before_s = _processor_s(top.pid)
        _read_for(master, TOP_S)
        return (_processor_s(top.pid) - before_s) / TOP_S
    finally:
        top.send_signal(signal.SIGTERM)
        top.wait(30.0)
        os.close(master)


def _read_for(master: int, seconds: float) -> None:
    """Takes what is drawn, so that the program never waits for its terminal."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        try:
            os.read(master, 1 << 16)
        except BlockingIOError:
            time.sleep(0.05)


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
