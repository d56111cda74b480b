"""Names an arena in what a process writes when the arena's truncation ends it.

Memory of a file that became shorter raises SIGBUS in the process that touches it, and no Python code runs
after that. `faulthandler` then writes the stack of each thread to stderr, and the process ends by the signal.
So memory of an arena is touched only below a function that has the arena's path in its name.
"""

from __future__ import annotations

import contextlib
import faulthandler
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any, TypeVar

T = TypeVar("T")
# The name of a function in a stack begins so if it reads an arena; the arena's path follows.
READS = "<reads the arena "


def enable() -> None:
    """Lets faulthandler write to stderr, unless the process decided about that before or has no stderr."""
    if not faulthandler.is_enabled():
        with contextlib.suppress(RuntimeError, ValueError, OSError, AttributeError):
            faulthandler.enable()


@lru_cache(maxsize=256)
def named_call(path: str) -> Callable[..., Any]:
    """A function that calls its first argument with the others; its name in a stack has this path in it."""
    return FunctionType(_call.__code__.replace(co_name=f"{READS}{path}>"), {})


def _call(work: Callable[..., T], *args: Any) -> T:
    return work(*args)
