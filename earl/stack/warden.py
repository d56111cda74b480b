"""Ends what is left of a run when its launcher dies, even by kill -9.

Every process of a run carries the same mark in its environment, and so do the processes that it
starts, whatever session or parent they end up with. The launcher holds the write end of a pipe
whose read end is the warden's standard input: when the pipe closes without the word DONE, the
warden signals every process with the mark, kills what is left after a bound, and removes the run's
shared memory and sockets. `python -m earl.stack.warden MARK [PATH ...]`; Linux (it reads /proc).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path

# One value for all processes of a launch, and one for each process and what it starts.
MARK_VARIABLE = "EARL_STACK"
PROCESS_VARIABLE = "EARL_STACK_PROCESS"
# A directory for the run's Unix sockets, short and private, that goes with the run.
SOCKETS_VARIABLE = "EARL_SOCKETS"
DONE = b"done\n"
GRACE_S = 3.0


def marked_processes(mark: str, variable: str = MARK_VARIABLE) -> dict[int, int]:
    """pid → pidfd of every live process with the mark but this one. The caller closes the descriptors.

    A pidfd names the process itself: a reused pid is never signalled.
    """
    entry = f"{variable}={mark}".encode()
    descriptors: dict[int, int] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        pid = int(directory.name)
        if pid == os.getpid():
            continue
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # it has ended since
            continue
        try:
            belongs = entry in (directory / "environ").read_bytes().split(b"\0")
        except OSError:  # ended, or another user's
            belongs = False
        if belongs:
            descriptors[pid] = descriptor
        else:
            os.close(descriptor)
    return descriptors


def send(descriptors: Collection[int], signal_number: int) -> None:
    """Signals the processes of these pidfds; those that have ended get nothing."""
    for descriptor in descriptors:
        try:
            signal.pidfd_send_signal(descriptor, signal_number)
        except ProcessLookupError:
            continue


def wait_all(descriptors: Collection[int], timeout_s: float) -> bool:
    """Returns whether all have ended within that time. A pidfd is readable once its process ended."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    left = len(descriptors)
    deadline = time.monotonic() + timeout_s
    while left and (remaining := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(remaining * 1000):
            poll.unregister(descriptor)
            left -= 1
    return not left


def sweep(mark: str, *, variable: str = MARK_VARIABLE, grace_s: float = GRACE_S) -> list[int]:
    """Ends every process with the mark: SIGTERM, a bounded wait, SIGKILL. Returns the pids it found."""
    if not sys.platform.startswith("linux"):
        return []
    ended: list[int] = []
    for signal_number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, GRACE_S)):
        descriptors = marked_processes(mark, variable)
        ended += [pid for pid in descriptors if pid not in ended]
        send(descriptors.values(), signal_number)
        wait_all(descriptors.values(), wait_s)
        for descriptor in descriptors.values():
            os.close(descriptor)
    return ended


def main() -> int:
    mark, *paths = sys.argv[1:]
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == DONE:
        return 0
    sweep(mark)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
