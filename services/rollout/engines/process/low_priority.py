"""Work on a thread of low priority, in a process that has its usual priority before and afterwards.

On Linux each thread has a priority of its own, and only a privileged one may raise it again. The main thread,
which serves later, therefore keeps its priority, and waits for one that has a lower one and ends.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Added to the thread's niceness: where two others want each core, it gets a twentieth of that.
NICENESS = 10


def at_low_priority(work: Callable[[], T]) -> T:
    """Runs work on a thread of low priority; returns what it returns, raises what it raises."""
    with ThreadPoolExecutor(1, "low priority", _lower_priority) as executor:
        return executor.submit(work).result()


def _lower_priority() -> None:
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
