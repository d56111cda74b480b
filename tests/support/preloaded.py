"""EARL's own processes, forked from the server of `forked.py` that has their imports, instead of begun anew.

    asyncio.create_subprocess_exec(sys.executable, "-m", MODULE, ...)
        └─ MODULE is in MODULES ─► fork server ─► a process that runs MODULE as __main__
                                        ▲                     │
                                        └─ what it starts ◄───┘
    torchrun's agent, forked so ─► its ranks, forked from the agent itself

An interpreter needs three seconds of CPU to import what a trainer needs, two for an engine's rank, half of
one for a service or a serving process: `preloaded()` saves them for what a test's own process starts, and
for what those processes start in turn (`preload_here`). Command line, variables, descriptors, signals and
exit codes are those of a real start. torchrun's ranks are children of their agent, as in a run. Of the
others the parent is another (the fork server: `started_by` finds processes
by who asked for them), and all have its seed of Python's hashes. Tests of the start, of `earl train`, and one
of two runs that must be equal do without.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import logging
import multiprocessing
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import psutil
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from tests.support.forked import MODULES, ROOM, Forked, begin_server

# Above every descriptor that a process of tests has.
SPARE_FD = 600
START_S = 60.0
_PR_SET_NAME = 15


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


class ForkedCommand:
    """`python -m MODULE ARGUMENTS` as subprocess.Popen shows one with pipes for its output."""

    def __init__(
        self, module: str, arguments: Sequence[str], directory: Path, variables: dict[str, str]
    ) -> None:
        (output, written), (errors, written_errors) = os.pipe(), os.pipe()
        try:
            self._forked = Forked(
                _run, module, tuple(arguments), variables, str(directory), False, (1, 2), os.getpid(),
                inherited=(written, written_errors),
            )  # fmt: skip
        finally:
            os.close(written)
            os.close(written_errors)
        self.stdout, self.stderr = os.fdopen(output, encoding="utf-8"), os.fdopen(errors, encoding="utf-8")
        self.pid = self._forked.pid
        self.returncode: int | None = None
        assert self._forked.receive(START_S) == "begun"

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = START_S) -> tuple[str, str]:
        """Reads all of its output, at most a pipe's worth on standard output, and waits for its end."""
        with self.stdout, self.stderr:
            errors = self.stderr.read()
            output = self.stdout.read()
        self.returncode = self._forked.wait(timeout)
        return output, errors


class ForkedPopen:
    """`python -m MODULE ARGUMENTS` as subprocess.Popen shows one whose output goes to a file."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: dict[str, str],
        stdout: BinaryIO,
        start_new_session: bool,
        **_: Any,
    ) -> None:
        output = stdout.fileno()
        self._forked = Forked(
            _run, command[2], tuple(command[3:]), env, os.getcwd(), start_new_session, (1, 2), os.getpid(),
            inherited=(output, output),
        )  # fmt: skip
        self.pid = self._forked.pid
        assert self._forked.receive(START_S) == "begun"

    def poll(self) -> int | None:
        return None if self._forked.running else self._forked.wait(START_S)

    def wait(self, timeout: float) -> int:
        return self._forked.wait(timeout)


class ForkedRank:
    """A rank of torchrun, forked from its agent, as subprocess.Popen shows one that was begun anew."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._collect(os.WNOHANG)

    def wait(self, timeout: float) -> int | None:
        """Its exit code. Raises subprocess.TimeoutExpired if it stays for as many seconds."""
        if self.returncode is None:
            ended = os.pidfd_open(self.pid)
            try:
                if not select.select([ended], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(str(self.pid), timeout)
            finally:
                os.close(ended)
        return self._collect(0)

    def _collect(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


_popen_anew = SubprocessHandler._popen


def _popen_rank(self: SubprocessHandler, args: tuple[str, ...], env: dict[str, str]) -> Any:
    """In place of SubprocessHandler._popen; in the agent's main thread, as the rank's signals need it."""
    if args[:2] != (sys.executable, "-m") or args[2] not in MODULES:
        return _popen_anew(self, args, env)
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return ForkedRank(pid)
    _run_rank(args, env, (self._stdout, self._stderr))


class _Starts:
    """A stand-in for asyncio.create_subprocess_exec while a block of `preloaded` is open."""

    begin_anew = staticmethod(asyncio.create_subprocess_exec)
    open_blocks = 0

    @classmethod
    def replaces(cls) -> None:
        cls.open_blocks += 1
        asyncio.create_subprocess_exec = cls.start  # type: ignore[assignment]

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
    begin_server()
    _Starts.replaces()
    try:
        yield
    finally:
        _Starts.open_blocks -= 1
        if not _Starts.open_blocks:
            asyncio.create_subprocess_exec = _Starts.begin_anew


def preload_here() -> None:
    """In a forked process: forks what it starts of MODULES from the server that it was itself forked from.

    As in a run, nothing ends with the process that does not see to it by itself.
    """
    os.environ.pop(ROOM, None)
    # Its server runs: there is no other one to begin.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    Forked.outlives_its_starter = True
    _Starts.replaces()
    SubprocessHandler._popen = _popen_rank  # type: ignore[method-assign]


def started_by(pid: int) -> list[psutil.Process]:
    """The live processes that were forked at the request of this one."""
    return [process for process in psutil.process_iter(["name"]) if process.info["name"] == _name_of(pid)]


def _name_of(starter: int) -> str:
    """The name of processes that this one started, instead of `python`."""
    return f"by {starter}"


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
            tuple(given), os.getpid(), inherited=tuple(given.values()),
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
    starter: int,
    inherited: tuple[Any, ...],
) -> None:
    """In the forked process: becomes `python -m module *arguments`."""
    if new_session:
        os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _name_of(starter).encode())
    # First out of the way: the number of one may be the place of another.
    begun = Connection(_moved(os.dup(pipe.fileno())))
    pipe.close()
    held = [_moved(one.detach()) for one in inherited]
    for number, source in zip(numbers, held, strict=True):
        os.dup2(source, number)
        os.close(source)
    # The fork server's know of its own files, not of these.
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(variables)
    _show([sys.executable, "-m", module, *arguments], variables)
    os.chdir(directory)
    sys.path[:0] = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.argv = [module, *arguments]
    begun.send("begun")
    begun.close()
    preload_here()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _run_rank(command: tuple[str, ...], variables: dict[str, str], files: tuple[Any, Any]) -> NoReturn:
    """In the process that the agent forked: becomes the command, and never returns to the agent's frames."""
    code: Any = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_NAME, _name_of(os.getppid()).encode())
        for number, file in zip((1, 2), files, strict=True):
            if file is not None:
                os.dup2(file.fileno(), number)
        _close_descriptors()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        logging.getLogger().handlers.clear()
        os.environ.clear()
        os.environ.update(variables)
        _show(command, variables)
        module, sys.argv = command[2], list(command[2:])
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        logging.exception("a forked rank failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _close_descriptors() -> None:
    """Closes all but the standard ones and those by which a process asks the fork server for another."""
    kept = {0, 1, 2, forkserver._forkserver._forkserver_alive_fd, resource_tracker._resource_tracker._fd}  # type: ignore[attr-defined]
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            try:
                os.close(number)
            except OSError:
                pass  # the one by which the directory was read


def _show(command: Sequence[str], variables: dict[str, str]) -> None:
    """Writes both where /proc has them, over the fork server's: a run's processes are found by them."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    command_start, command_end, variables_start, variables_end = map(int, fields[45:49])
    pairs = [f"{name}={value}" for name, value in variables.items()]
    places = ((command, command_start, command_end), (pairs, variables_start, variables_end))
    for texts, start, end in places:
        shown = b"".join(os.fsencode(text) + b"\0" for text in texts)
        assert len(shown) < end - start, f"no room for {len(shown)} bytes"
        ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _moved(number: int) -> int:
    """The descriptor's number above SPARE_FD; the one that it had is closed."""
    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, SPARE_FD)
    os.close(number)
    return moved
