"""A benchmark's own processes: their output, and errors of the catalogue for those that fail or time out.

`earl bench` then ends with one line and a documented exit code, whatever happened to them.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from earl.errors import DeadlineExceeded, EarlError, ProcessFailed

# What to do about a result that is not what the benchmark's own check expects.
REPORT = "this is a bug: report it, with this line and the output of earl doctor --json"
# How much of a process's standard error an error keeps, from its end.
ERROR_CHARACTERS = 2000


class MeasurementWrong(EarlError):
    """A benchmark did not do what it measures, so none of its figures is written."""


def process_error(what: str, code: object, stderr: str = "", remedy: str = "") -> ProcessFailed:
    """The error for processes that ended with `code`. stderr: their standard error; the error has its end."""
    lines = stderr.strip().splitlines()
    error = ProcessFailed(
        f"{what} ended with {code}" + (f": {lines[-1].strip()}" if lines else ""),
        remedy or ("its output stands above" if lines else "see its output, above"),
    )
    if lines[:-1]:
        error.add_note("\n".join(lines[:-1])[-ERROR_CHARACTERS:])
    return error


def late(what: str, limit_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{what} took longer than {limit_s:g} s",
        "see whether the machine is busy or short of memory; otherwise ask for less (--help)",
    )


@asynccontextmanager
async def within(limit_s: float, what: str) -> AsyncIterator[None]:
    """Raises DeadlineExceeded when the block takes longer than `limit_s`."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        raise late(what, limit_s) from error


def last_line(
    command: Sequence[str],
    what: str,
    limit_s: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Runs a command and returns the last line that it prints. Raises ProcessFailed, DeadlineExceeded."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=cwd, env=env, timeout=limit_s
        )
    except subprocess.TimeoutExpired as error:
        raise late(what, limit_s) from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise process_error(what, done.returncode, done.stderr)
    return lines[-1]


def outputs_of(processes: Sequence[subprocess.Popen[str]], what: str, limit_s: float) -> list[str]:
    """The output of each process, once all have ended; none is left running. Raises as `last_line`."""
    try:
        outputs = [process.communicate(timeout=limit_s)[0] for process in processes]
    except subprocess.TimeoutExpired as error:
        raise late(what, limit_s) from error
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    if any(codes):
        raise process_error(what, codes)
    return outputs
