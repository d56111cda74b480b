"""Lowers the priority of a process that computes, so that whoever uses the machine is served first.

A worker keeps every core that is free. Where a core is wanted by the scheduler service, an environment, a
command that is typed or the desktop, those get most of it. Linux ranks processes inside a session, and
sessions against each other (sched(7), autogroup), so both are told.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

# The kernel takes a session's priority from an unprivileged process every 0.1 s.
RETRIES, RETRY_S = 20, 0.1


async def lower_priority(pid: int, steps: int) -> None:
    """Raises the nice value of a process that was just started, the leader of its session, by `steps`.

    Threads and processes that it starts inherit the value, of at most 19. A process that has ended, or a
    system that refuses, keeps its priority.
    """
    try:
        nice = min(19, os.getpriority(os.PRIO_PROCESS, pid) + steps)
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    except OSError:
        return
    for _ in range(RETRIES):
        if _is_settled(Path(f"/proc/{pid}/autogroup"), nice):
            return
        await asyncio.sleep(RETRY_S)


def _is_settled(session: Path, nice: int) -> bool:
    """Gives a session its nice value, and returns whether nothing is left to try."""
    try:
        session.write_text(f"{nice}\n", encoding="ascii")
    except BlockingIOError:
        return False
    except OSError:  # another system than Linux, or a kernel without session groups
        pass
    return True
