"""The head of a run on a cluster: the launcher, in a job. `python -m earl.cli.run.head ORDER`.

    order.json ─► jobs of an earlier head are ended ─► launch: some processes here, the others as jobs
                                                          │
                  news.jsonl, launch.json, logs/ ◄────────┤
                  head.json: its count ◄──────────────────┤
                  stop: what `earl stop` asks ────────────┘

The manager starts it again where its node is lost: it then resumes the run. ORDER is `cluster/order.json` of
the run's directory.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from earl.cli.lib.exit_code import INTERRUPTED
from earl.cli.run.detached import LaunchChannel, LaunchOrder, concluded, failure_news, follow
from earl.cli.run.launch import handle_signals
from earl.dispatch.memory.arena_file import arena_directory
from earl.errors import EarlError, ProcessFailed
from earl.stack.cluster.access import secret_variables
from earl.stack.cluster.agent import OF_NODE
from earl.stack.cluster.folder import BEAT_S, GONE_S, NOW, ClusterFolder, Fence, lines
from earl.stack.cluster.heads import end_jobs
from earl.stack.cluster.jobs import JobBoard, LaunchOfJobs
from earl.stack.cluster.manager import ClusterManager
from earl.stack.cluster.managers import manager_of
from earl.stack.cluster.places import ClusterPlaces, address_variables
from earl.stack.launcher import LaunchOutcome, Signals
from earl.stack.run_files import LOCK
from earl.stack.rundir import run_path

logger = logging.getLogger(__name__)

WATCH_S = 1.0
# A lock of a machine that was lost is released by a network file system after its own lease.
LOCK_S = GONE_S


class HeadOrder(BaseModel):
    """A run for a head to launch.

    variables: of whoever submitted it; directory: where that was. python: variables by which the interpreter
    finds EARL on another node. name: a random one, where the head may be started again after it has ended.
    """

    order: LaunchOrder
    manager: str
    directory: str
    variables: dict[str, str]
    python: dict[str, str] = {}
    name: str = ""


async def run(given: HeadOrder, folder: ClusterFolder, manager: ClusterManager) -> LaunchOutcome:
    """Runs the launch of an order until it has ended. Raises what the launch raises."""
    name = secrets.token_hex(8)
    fence = Fence(folder.head, name)
    await asyncio.to_thread(fence.beat)
    config, run_directory = given.order.config, run_path(given.order.config)
    nodes = await asyncio.to_thread(manager.nodes)
    address = await asyncio.to_thread(manager.node_address)
    os.environ.update(secret_variables(folder) | address_variables(address))
    arenas = arena_directory(config.data_plane, run_directory)
    jobs = LaunchOfJobs(
        config.name, name, given.directory, arenas, config.cluster.queue_s, python=given.python
    )
    board = JobBoard(manager, folder, jobs)
    signals = handle_signals()
    watcher = asyncio.create_task(watch(signals, fence, folder))
    # A head that was started again continues what the one before had begun.
    order = given.order.model_copy(update={"resume": given.order.resume or has_begun(run_directory)})
    channel = LaunchChannel(open_news(folder))
    places = ClusterPlaces(config, board, nodes, address)
    try:
        return await follow(order, channel, time.monotonic() - order.waited_s, signals, places)
    except EarlError as error:
        channel.send(failure_news(error))
        raise
    finally:
        watcher.cancel()
        await board.close()


async def watch(signals: Signals, fence: Fence, folder: ClusterFolder) -> None:
    """Counts on, and does what `earl stop` asks; ends this process if another head has taken its place."""
    beaten_at, requests = 0.0, 0
    while True:
        if time.monotonic() - beaten_at >= BEAT_S:
            if reason := await asyncio.to_thread(fence.broken):
                logger.error("this head ends: %s", reason)
                os.kill(os.getpid(), signal.SIGKILL)  # its warden ends the rest; the run is the other's
            await asyncio.to_thread(fence.beat)
            beaten_at = time.monotonic()
        words = await asyncio.to_thread(lines, folder.stop)
        for word in words[requests:]:
            if word == NOW:
                signals.rush()
            else:
                signals.ask("earl stop")
        requests = len(words)
        await asyncio.sleep(WATCH_S)


def has_begun(run_directory: Path) -> bool:
    """Returns whether an earlier head of this order has written the run."""
    return (run_directory / "run.json").is_file()


def open_news(folder: ClusterFolder) -> Any:
    return os.fdopen(os.open(folder.news, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a")


def await_lock(run_directory: Path) -> None:
    """Waits until no other machine holds the run's lock. Raises ProcessFailed after LOCK_S."""
    until = time.monotonic() + LOCK_S
    with open(os.open(run_directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600), "rb") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise ProcessFailed(
                        f"{run_directory} is held by another launcher for more than {LOCK_S:g} s",
                        "end it, then resume the run",
                    ) from None
                time.sleep(WATCH_S)


def lead(given: HeadOrder, folder: ClusterFolder) -> LaunchOutcome:
    """Runs an order in this process until its launch has ended. Raises EarlError."""
    variables = {name: value for name, value in given.variables.items() if not name.startswith(OF_NODE)}
    os.environ.update(variables)
    if Path(given.directory).is_dir():
        os.chdir(given.directory)
    manager = manager_of(given.manager, given.order.config.cluster)
    end_jobs(manager, folder.names())
    await_lock(run_path(given.order.config))
    outcome = asyncio.run(run(given, folder, manager))
    concluded(outcome, given.order.config)
    return outcome


def report_failure(error: EarlError) -> int:
    """Logs the error with which a launch failed. Returns the exit code."""
    logger.error("%s", error, extra={"fields": {"error": type(error).__name__}})
    sys.stderr.write(f"earl: error: {' '.join(str(error).split())}\n")
    return error.exit_code


def conclude(folder: ClusterFolder, code: int) -> None:
    """Records that the head has ended with this code; nothing that it or its jobs need is left."""
    job = folder.job
    if job is not None:
        folder.keep_job(replace(job, ended=True, code=code))
    folder.clear()


def main() -> int:
    folder = ClusterFolder(Path(sys.argv[1]).parents[1])
    logging.getLogger().addHandler(logging.NullHandler())  # until there is a log
    given = HeadOrder.model_validate_json(folder.order.read_bytes())
    try:
        code = 0 if lead(given, folder).complete else INTERRUPTED
    except EarlError as error:
        code = report_failure(error)
    conclude(folder, code)
    return code


if __name__ == "__main__":
    sys.exit(main())
