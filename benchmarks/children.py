"""A benchmark's own processes: what they said, and errors of the catalogue for those that fail or stay.

So `earl bench` ends with one line and a documented exit code, whatever became of them.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from earl.errors import DeadlineExceeded, ProcessFailed

# What to do about a result that is not what the benchmark's own check expects.
REPORT = "this is a bug: report it, with this line and the output of earl doctor --json"
# Of what a process wrote on standard error, the end.
SAID_CHARACTERS = 2000


def ended(what: str, code: object, said: str = "", remedy: str = "") -> ProcessFailed:
    """Of processes that should not have ended so. said: on standard error; its end goes with the error."""
    lines = said.strip().splitlines()
    error = ProcessFailed(
        f"{what} ended with {code}" + (f": {lines[-1].strip()}" if lines else ""),
        remedy or ("what it said stands above" if lines else "see what it said, above"),
    )
    if lines[:-1]:
        error.add_note("\n".join(lines[:-1])[-SAID_CHARACTERS:])
    return error


def late(what: str, limit_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{what} took longer than {limit_s:g} s",
        "see whether the machine is busy or short of memory; otherwise ask for less (--help)",
    )


@asynccontextmanager
async def within(limit_s: float, what: str) -> AsyncIterator[None]:
    """Raises DeadlineExceeded when what is done here takes longer."""
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
    """What a process printed last. Raises ProcessFailed, DeadlineExceeded."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=cwd, env=env, timeout=limit_s
        )
    except subprocess.TimeoutExpired as error:
        raise late(what, limit_s) from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise ended(what, done.returncode, done.stderr)
    return lines[-1]


def all_said(processes: Sequence[subprocess.Popen[str]], what: str, limit_s: float) -> list[str]:
    """What each printed, once all have ended; none is left running. Raises as `last_line`."""
    try:
        said = [process.communicate(timeout=limit_s)[0] for process in processes]
    except subprocess.TimeoutExpired as error:
        raise late(what, limit_s) from error
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    if any(codes):
        raise ended(what, codes)
    return said
