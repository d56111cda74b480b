"""Programs of tests, each in a process of its own: forked, not begun anew.

    fork server (imports PROGRAMS, then only forks) ─┬─ owner of an arena ── pipe ── test
                                                     ├─ reader ── pipe ── test
                                                     └─ rank 0 .. n ── pipe ── test

A new interpreter takes half a second of CPU to import the data plane and two to import what ranks compute
with; the fork server of multiprocessing has done it once. It has neither threads nor sockets.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import _children  # type: ignore[attr-defined]
from multiprocessing.reduction import DupFd
from typing import Any

# Modules whose functions are run.
PROGRAMS = [
    f"tests.support.{name}"
    for name in (
        "dispatch_owner", "dispatch_reader", "layout_ranks", "mesh_trainer", "mover", "preloaded",
        "sliced_decoder", "summing_rank", "switcher",
    )
]  # fmt: skip
# EARL's own processes that `preloaded.py` forks, and what each would import.
MODULES: dict[str, tuple[str, ...]] = {
    "earl.cli.main": ("earl.cli.run.train", "earl.stack.launcher"),
    "services.rollout.engines.process": (
        "services.rollout.engines.torch.leader",
        "services.rollout.engines.torch.ranks",
    ),
    "services.scheduler": ("services.scheduler.service",),
    "services.rollout": ("services.rollout.service",),
    "services.env_gateway": ("services.env_gateway.serve",),
    "services.trainer": (
        "services.trainer.service",
        "services.trainer.ranks.rendezvous",
        "torch.distributed.launcher.api",
    ),
    "services.trainer.reference": ("services.trainer.reference.service",),
    "services.trainer.teacher": ("services.trainer.teacher.service",),
    "services.trainer.reward_model": ("services.trainer.reward_model.service",),
    "earl.env.host": ("earl.env.serve",),
    "earl.models": ("earl.models.create",),
    "earl.stack.valkey": ("earl.bus.embedded",),
    # Not UCX itself: each wire loads one of its own.
    "earl.dispatch.serve": ("earl.dispatch.serve.listener",),
}
PRELOADED = [*PROGRAMS, *(name for names in MODULES.values() for name in names)]
# The server ignores a module that does not exist: each process would then import it by itself.
assert all(map(importlib.util.find_spec, PRELOADED)), PRELOADED
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)
# Room in which a forked process can show the variables that it was given (`preloaded.py`).
ROOM, ROOM_BYTES = "EARL_TEST_ROOM", 32 << 10


def begin_server() -> None:
    """Begins the fork server, unless it runs."""
    os.environ[ROOM] = "." * ROOM_BYTES
    try:
        forkserver._forkserver.ensure_running()  # type: ignore[attr-defined]
    finally:
        del os.environ[ROOM]


class Inherited(tuple[int, ...]):
    """Descriptors on their way to a forked process, which finds objects that detach() to its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, ([DupFd(number) for number in self],)


class Forked:
    """`main(pipe, *arguments)` in a process of its own, at the other end of a pipe.

    Whatever waits for it raises TimeoutError after `timeout_s`. inherited: descriptors that `main` gets as
    one more argument, a tuple whose items detach() to its own. sentinel: readable once the process has ended.
    outlives_its_starter: the starting process may end without it, as real ones do.
    """

    outlives_its_starter = False

    def __init__(self, main: Callable[..., None], *arguments: Any, inherited: tuple[int, ...] = ()) -> None:
        begin_server()
        self._pipe, theirs = _context.Pipe()
        given = (*arguments, Inherited(inherited)) if inherited else arguments
        # A daemon: it goes with the test's process.
        self._process = _context.Process(target=main, args=(theirs, *given), daemon=True)
        self._process.start()
        if self.outlives_its_starter:
            _children.discard(self._process)
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def sentinel(self) -> int:
        return self._process.sentinel

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def receive(self, timeout_s: float) -> Any:
        """The next value that it sends. Raises EOFError if it ended."""
        if not self._pipe.poll(timeout_s):
            raise TimeoutError(f"process {self.pid} sent nothing in {timeout_s:g} s")
        return self._pipe.recv()

    def send(self, value: Any) -> None:
        self._pipe.send(value)

    def hang_up(self) -> None:
        """Closes the pipe: it receives nothing more."""
        self._pipe.close()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float) -> int:
        """Its exit code, negative for a signal."""
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise TimeoutError(f"process {self.pid} did not end in {timeout_s:g} s")
        return self._process.exitcode
