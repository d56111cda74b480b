"""Notices environment code that holds a host's loop, where every other episode waits for it.

A thread asks the loop for a sign of life. If none comes within the bound, the loop's thread is in some
call: the stack says in which environment's, if in any.

    thread   ask ── bound ──► no answer ─► stack of the loop ─► an environment's method? ─► log, count
                      │ answer                                                          └ no: ask on
                      └─► sleep for the bound, ask again

What holds the loop for longer than twice the bound is always noticed. Only what holds Python's global
lock in C is not: the gateway's lease is for that.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import sys
import threading
from types import FrameType

from earl.env.base import Environment

log = logging.getLogger(__name__)

HOLD_S = 0.5


class LoopWatch:
    """Watches the running loop from a thread of its own, until closed.

    held: how often environments held it, by the environment's name.
    """

    def __init__(self, bound_s: float = HOLD_S) -> None:
        self.held: collections.Counter[str] = collections.Counter()
        self._bound_s = bound_s
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="loop-watch", daemon=True).start()

    def close(self) -> None:
        """Stops watching; the thread ends soon."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(self._bound_s):
            alive = threading.Event()
            try:
                self._loop.call_soon_threadsafe(alive.set)
            except RuntimeError:
                return  # the loop has ended
            noticed = False
            while not alive.wait(self._bound_s) and not self._closed.is_set():
                noticed = noticed or self._notice()

    def _notice(self) -> bool:
        """Returns whether an environment is what the loop is in; it is then counted and named."""
        held_by = holder(sys._current_frames().get(self._watched))
        if held_by is None:
            return False
        name, where = held_by
        count = self.held[name] + 1
        if count & (count - 1) == 0:  # 1, 2, 4, …: an environment that always does it fills no log
            log.warning(
                "%s holds the loop for longer than %g s, and with it every other episode of this host, at %s"
                " (%d times so far); await there, or use in_thread or a plain method",
                *(name, self._bound_s, where, count),
            )
        self.held[name] = count
        return True


def holder(frame: FrameType | None) -> tuple[str, str] | None:
    """(name, "file:line in function") of the environment whose method is innermost on a stack."""
    while frame is not None:
        code = frame.f_code
        owner = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(owner, Environment):
            name = owner.name or type(owner).__name__
            return name, f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return None
