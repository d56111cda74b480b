"""Runs a module in a process of its own, which cannot take the command down, and reads what it finds."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

PROBE_S = 60.0
# Stands before a command in a remedy.
BY_HAND = "run it yourself: "


async def probed_by(
    module: str,
    given: str,
    *arguments: str,
    piped: str = "",
    environment: Mapping[str, str] | None = None,
    timeout_s: float = PROBE_S,
) -> dict[str, Any]:
    """{"facts", "error"} of `python -m module`; a crash and a timeout are errors like any other.

    given: what it reads on standard input. piped: the command by which a person gives it that, where it is
    not to be shown as it is. environment: in addition to this process's.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env=os.environ | (environment or {}),
    )
    piped = piped or f"printf %s {shlex.quote(given)}"
    by_hand = " ".join((piped, "| python -m", module, *arguments))
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate(given.encode())
    except TimeoutError:
        return failed_probe(f"its probe did not end within {timeout_s:g} s", f"{BY_HAND}{by_hand}")
    finally:
        if process.returncode is None:
            # With what it started: a serving process of its own may be stuck too.
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    with suppress(ValueError, IndexError):
        return json.loads(out.decode().splitlines()[-1])  # libraries may talk before it
    last = (err.decode(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
    failure = f"its probe ended with {process.returncode}: {last}"
    if last.startswith("ModuleNotFoundError"):
        return failed_probe(failure, 'pip install "earl[stack]", or what is missing alone')
    return failed_probe(failure, f"{BY_HAND}{by_hand}")


def failed_probe(message: str, remedy: str) -> dict[str, Any]:
    return {"facts": {}, "error": {"message": message, "remedy": remedy}}
