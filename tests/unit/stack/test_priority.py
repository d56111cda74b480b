"""The priority of what computes, as the kernel has it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from earl.stack.priority import lower_priority

# Starts a child once it is told to, which tells the priority that it has.
PARENT = """
import os, subprocess, sys
sys.stdin.readline()
child = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
print(os.getpriority(os.PRIO_PROCESS, 0), flush=True)
subprocess.run([sys.executable, "-c", child])
"""


def session_nice(pid: int) -> int | None:
    """The nice value of a process' session; None where the kernel does not group by sessions."""
    file = Path(f"/proc/{pid}/autogroup")
    return int(file.read_text().split()[-1]) if file.is_file() else None


async def started() -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdin=pipe, stdout=pipe, start_new_session=True
    )


async def test_a_process_its_session_and_its_children_stand_back() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    expected = min(19, before + 7)
    process = await started()
    await lower_priority(process.pid, 7)
    assert session_nice(process.pid) in (expected, None)
    output, _ = await process.communicate(b"\n")
    assert output.split() == [str(expected).encode()] * 2
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


async def test_a_process_that_has_ended_is_no_error() -> None:
    process = await started()
    await process.communicate(b"\n")
    await lower_priority(process.pid, 19)
