"""EARL's own processes, forked from the server of `forked.py` that has their imports, instead of begun anew.

    asyncio.create_subprocess_exec(sys.executable, "-m", MODULE, ...)
        └─ MODULE is in MODULES ─► fork server ─► a process that runs MODULE as __main__

An interpreter needs three seconds of CPU to import what a trainer needs, two for an engine's rank, half of
one for a service: `preloaded()` saves them for processes that a test's own process starts. Command line,
variables, descriptors, session, signals and exit codes are those of a real start. The parent is another
(the fork server), and all have its seed of Python's hashes. What these processes start themselves is
started as in a run. Tests of the start, of `earl train`, and one of two runs that must be equal do without.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import runpy
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

from tests.support.forked import MODULES, Forked

# Above every descriptor that a process of tests has.
SPARE_FD = 600
START_S = 60.0


class PreloadedProcess:
    """A forked process, as asyncio.subprocess.Process shows one that was begun anew."""

    def __init__(
        self, forked: Forked, stdin: asyncio.StreamWriter | None, stdout: asyncio.StreamReader | None
    ) -> None:
        self._forked = forked
        self.stdin, self.stdout = stdin, stdout
        self.pid = forked.pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(forked.sentinel, self._note_end)

    def _note_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._forked.sentinel)
        self.returncode = self._forked.wait(START_S)
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Starts:
    """A stand-in for asyncio.create_subprocess_exec while a block of `preloaded` is open."""

    begin_anew = staticmethod(asyncio.create_subprocess_exec)
    open_blocks = 0

    @classmethod
    async def start(cls, program: str, *arguments: str, **options: Any) -> Any:
        if program == sys.executable and arguments[0] == "-m" and arguments[1] in MODULES:
            return await _fork(arguments[1], arguments[2:], **options)
        return await cls.begin_anew(program, *arguments, **options)


@contextmanager
def preloaded() -> Iterator[None]:
    """Forks what this process starts of MODULES within the block. Blocks may overlap.

    The fork server is begun here, so that it has none of the variables that are set within the block.
    """
    forkserver.ensure_running()
    _Starts.open_blocks += 1
    asyncio.create_subprocess_exec = _Starts.start  # type: ignore[assignment]
    try:
        yield
    finally:
        _Starts.open_blocks -= 1
        if not _Starts.open_blocks:
            asyncio.create_subprocess_exec = _Starts.begin_anew


async def _fork(
    module: str,
    arguments: Sequence[str],
    *,
    stdin: int | None = None,
    stdout: Any = None,
    stderr: Any = None,
    env: dict[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    start_new_session: bool = False,
    limit: int = 1 << 16,
) -> PreloadedProcess:
    ours: dict[int, int] = {}
    theirs: list[int] = []
    given = {number: number for number in (1, 2, *pass_fds)}
    for number, wanted in enumerate((stdin, stdout, stderr)):
        if wanted == asyncio.subprocess.PIPE:
            read, written = os.pipe()
            given[number], ours[number] = (read, written) if number == 0 else (written, read)
            theirs.append(given[number])
        elif wanted == asyncio.subprocess.DEVNULL:
            given[number] = os.open(os.devnull, os.O_RDWR)
            theirs.append(given[number])
        elif wanted is not None:
            given[number] = wanted if isinstance(wanted, int) else wanted.fileno()
    try:
        forked = Forked(
            _run, module, tuple(arguments), dict(env or os.environ), os.getcwd(), start_new_session,
            tuple(given), inherited=tuple(given.values()),
        )  # fmt: skip
    finally:
        for number in theirs:
            os.close(number)
    assert forked.receive(START_S) == "begun"
    return PreloadedProcess(
        forked,
        await _writer(ours[0]) if 0 in ours else None,
        await _reader(ours[1], limit) if 1 in ours else None,
    )


async def _reader(number: int, limit: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=limit)
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(number, "rb", 0))
    return reader


async def _writer(number: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(number, "wb", 0)
    )
    return asyncio.StreamWriter(transport, protocol, None, loop)


def _run(
    pipe: Connection,
    module: str,
    arguments: tuple[str, ...],
    variables: dict[str, str],
    directory: str,
    new_session: bool,
    numbers: tuple[int, ...],
    inherited: tuple[Any, ...],
) -> None:
    """In the forked process: becomes `python -m module *arguments`."""
    if new_session:
        os.setsid()
    # First out of the way: the number of one may be the place of another.
    begun = Connection(_moved(os.dup(pipe.fileno())))
    pipe.close()
    held = [_moved(one.detach()) for one in inherited]
    for number, source in zip(numbers, held, strict=True):
        os.dup2(source, number)
        os.close(source)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(directory)
    sys.path[:0] = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv = [module, *arguments]
    begun.send("begun")
    begun.close()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _moved(number: int) -> int:
    """The descriptor's number above SPARE_FD; the one that it had is closed."""
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, SPARE_FD)
    os.close(number)
    return moved
