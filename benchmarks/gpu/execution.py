"""Runs checks, each in a process group of its own with a deadline, and makes a row of each.

    untimed checks ─► as many at once as `side_by_side` ─┐
    timed checks   ─► one at a time, alone ──────────────┴─► rows, in the table's order

Promise: a check that fails, dies or hangs costs its own row; nothing that it started is left in its process
group, and its two directories are removed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu.check import FAILED, SKIPPED, GpuCheck, Sizes
from benchmarks.record.checkout import ROOT

# Deadlines are for machines with cards; on processors they are so many times as long.
PROCESSOR_SLACK = 2.0
# What a failed check's row keeps of what it printed, from the end.
SHOWN_CHARACTERS = 3000
SHARED_MEMORY = Path("/dev/shm")
# After SIGKILL.
REAP_S = 10.0


class CheckRunner:
    """Runs checks until `limit_s` is used up. ended: gets each row as it comes."""

    def __init__(
        self,
        device: str,
        gpus: int,
        sizes: Sizes,
        limit_s: float,
        ended: Callable[[dict[str, Any]], None] = lambda row: None,
        side_by_side: int = 1,
    ) -> None:
        self._device, self._gpus, self._sizes = device, gpus, sizes
        self._ends, self._limit_s = time.monotonic() + limit_s, limit_s
        self._ended, self._side_by_side = ended, side_by_side
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, checks: Sequence[GpuCheck]) -> list[dict[str, Any]]:
        """A row for each check, in order."""
        rows: dict[str, dict[str, Any]] = {}
        untimed = [check for check in checks if not check.timed]
        try:
            with ThreadPoolExecutor(max(1, self._side_by_side)) as pool:
                try:
                    for check, row in zip(untimed, pool.map(self.row, untimed), strict=True):
                        rows[check.name] = row
                except BaseException:
                    # The pool waits for its threads, and they for their processes.
                    self._end_all()
                    raise
            for check in checks:
                if check.timed:
                    rows[check.name] = self.row(check)
        except BaseException:
            self._end_all()
            raise
        return [rows[check.name] for check in checks]

    def row(self, check: GpuCheck) -> dict[str, Any]:
        """Runs one check to its end."""
        started = time.monotonic()
        outcome = self._outcome(check)
        row = {
            "name": check.name,
            "outcome": outcome["outcome"],
            "reason": outcome.get("reason", ""),
            "seconds": round(time.monotonic() - started, 1),
            "required": check.required,
            "proves": check.proves,
            "figures": outcome.get("figures", {}),
            "tolerance": outcome.get("tolerance", {}),
            **({"output": outcome["output"]} if outcome.get("output") else {}),
        }
        self._ended(row)
        return row

    def _outcome(self, check: GpuCheck) -> dict[str, Any]:
        if lacks := check.lacks(self._device, self._gpus):
            return {"outcome": SKIPPED, "reason": lacks}
        left_s = self._ends - time.monotonic()
        if left_s <= 0 or self._stopped:
            return {
                "outcome": FAILED,
                "reason": f"there was no time for it: {self._limit_s:g} s were used up",
            }
        shared = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        with (
            tempfile.TemporaryDirectory(prefix="earl-gpu-") as directory,
            tempfile.TemporaryDirectory(prefix="earl-gpu-", dir=shared, ignore_cleanup_errors=True) as arenas,
        ):
            deadline_s = check.deadline_s * (PROCESSOR_SLACK if self._device == "cpu" else 1.0)
            return self._in_process(check, min(deadline_s, left_s), Path(directory), Path(arenas))

    def _in_process(self, check: GpuCheck, limit_s: float, directory: Path, arenas: Path) -> dict[str, Any]:
        settings = {
            "device": self._device,
            "gpus": self._gpus,
            "sizes": self._sizes,
            "directory": str(directory / "work"),
            "arenas": str(arenas),
        }
        (directory / "work").mkdir()
        result, printed = directory / "outcome.json", directory / "printed"
        command = [sys.executable, "-m", "benchmarks.gpu.child", check.function, json.dumps(settings)]
        environment = {**os.environ, "EARL_BENCH_RUNS": "", "TOKENIZERS_PARALLELISM": "false"}
        environment |= {"CUDA_VISIBLE_DEVICES": visible_devices(self._device, self._gpus)}
        with printed.open("wb") as output:
            process = subprocess.Popen(
                [*command, str(result)],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with self._lock:
            self._running.add(process)
        try:
            process.wait(limit_s)
            ended = f"its process ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"it had not ended after {limit_s:.0f} s"
        finally:
            end_group(process)
            with self._lock:
                self._running.discard(process)
        outcome = {"outcome": FAILED, "reason": ended}
        if process.returncode == 0 and result.exists():
            outcome = json.loads(result.read_text(encoding="utf-8"))
        if outcome["outcome"] == FAILED:
            text = printed.read_bytes().decode(errors="replace")
            outcome["output"] = text[-SHOWN_CHARACTERS:]
        return outcome

    def _end_all(self) -> None:
        """Ends every check in progress, and begins no other."""
        self._stopped = True
        with self._lock:
            running = list(self._running)
        for process in running:
            end_group(process)


def visible_devices(device: str, gpus: int, visible: str | None = None) -> str:
    """CUDA_VISIBLE_DEVICES for a check: the first `gpus` of those that this process sees.

    visible: the variable as it is here; None: read it.
    """
    if device == "cpu":
        return ""
    here = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    names = here.split(",") if here else [str(number) for number in range(gpus)]
    return ",".join(names[:gpus])


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of a check's process group, and waits for its first process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(REAP_S)
