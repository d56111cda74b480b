"""Starts and ends a service process.

`await_peers` lets a launcher start it before what it needs is there. `run` gives the process its loop
(uvloop where installed), turns SIGTERM and SIGINT into an event, and an `EarlError` into one line on
stderr and the error's exit code. A second signal cancels the main coroutine instead of waiting for its
drain.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from earl.bulk_import import bulk_import
from earl.errors import EarlError

Main = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
SIGNALLED_TWICE = 130
# Set by a launcher that signals on standard input when to begin.
AWAIT_VARIABLE = "EARL_AWAIT_PEERS"


def await_peers(*modules: str) -> None:
    """Waits until what this process needs is ready, if its launcher will signal it; imports these meanwhile.

    The signal is a line of JSON on standard input: variables, such as addresses that were not known before.
    """
    if not os.environ.pop(AWAIT_VARIABLE, ""):
        return
    with bulk_import():
        for module in modules:
            importlib.import_module(module)
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(SIGNALLED_TWICE)  # the launcher is gone
    os.environ.update(json.loads(line))


def run(main: Main) -> NoReturn:
    """Runs `main(stop)` and exits: 0 when it returns, the error's exit_code when it raises EarlError."""
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_supervised(main))
    except EarlError as error:
        raise SystemExit(ended_by(error)) from None
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise SystemExit(SIGNALLED_TWICE) from None
    raise SystemExit(0)


def ended_by(error: EarlError) -> int:
    """Prints the error as one line on stderr; returns the exit code that the process should end with."""
    sys.stderr.write(f"earl: error: {' '.join(str(error).split())}\n")
    sys.stderr.flush()
    return error.exit_code


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Returns the factory of event loops: uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _supervised(main: Main) -> None:
    stop = asyncio.Event()
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    await main(stop)


def announce(name: str, address: str, metrics: str = "") -> None:
    """Prints the ready line on stdout: JSON with the name, its address, and the address of its metrics."""
    line = {"ready": name, "address": address} | ({"metrics": metrics} if metrics else {})
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
