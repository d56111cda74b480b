"""Runs Python that an agent wrote, confined: `Sandbox().run("print(6 * 7)").output` is "42\\n".

Every run is a new process (nothing is kept between runs) that takes its own rights away before it
reads a line of the code (sandbox_child.py). What the code can do: compute with the standard library
(and the packages that the operator lists), threads, files in a folder of its own, which is gone afterwards.
What it cannot:

    processes    fork, run programs, signal or trace others: refused by the kernel (sandbox_filter.py),
                 so nothing outlives the run; killed after `wall_s`, and when the host dies
    network      no sockets at all; besides, an empty network namespace
    files        outside its folder it sees Python, shared libraries and `packages`, read-only; no /proc, no
                 home, none of the host's files, descriptors or environment variables
    resources    processor time, address space, size and number of files, descriptors, threads, output;
                 at most memory_bytes + disk_bytes of memory
    privileges   no capabilities, none to be had; where the host is root, the user is nobody's

Where namespaces are not permitted (most containers) Landlock keeps it to reading the same files, though
it can ask whether others exist; it writes none and has no threads, since these could not be bounded.
`layers` of a run tells which. A machine without seccomp, or with neither namespaces nor Landlock (Linux
before 5.13, other systems), raises SandboxUnavailable; `unprotected=True`, or EARL_SANDBOX=unprotected
in the environment, then runs the code with bounds on time, memory and output but with all the rights of
the host: for code you trust.

What it does not protect from: faults of the kernel, which sandbox and host share; what can be learned
from timing, caches and the processor; what a reader does with the output, which is the agent's text.
Shared libraries and Python's own files can be read. For hostile code with much to gain use a machine
of its own.

The same code gives the same output: hashes are not randomised. Only time, /dev/urandom and what the
machine is (its name, load, processors) differ.
"""

from __future__ import annotations

import enum
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from earl.env.sandbox_filter import ARCHITECTURES, program
from earl.errors import SandboxUnavailable

MAX_CODE_BYTES = 65_536
# Longest start of a run: Python's own start and the confining, about 20 ms on an idle machine.
START_S = 20.0
# An output this many times what is shown ends the run.
FLOOD = 1_024
UNPROTECTED = "unprotected"

# Without site-packages, the user's or the folder's modules, and without writing .pyc files.
_PYTHON = (os.path.realpath(sys.executable), "-S", "-s", "-P", "-B")
_CHILD = Path(__file__).with_name("sandbox_child.py")
# The limits that the child sets itself.
_CHILD_LIMITS = ("cpu_s", "memory_bytes", "disk_bytes", "files", "open_files", "threads")
# What Python needs to load: itself, shared libraries and where they are, time zones.
_READABLE = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/usr/share/zoneinfo",
)


class RunEnd(enum.Enum):
    """The ending of a run; the value is the text that the agent gets."""

    OK = ""
    FAILED = "failed"
    TIMEOUT = "stopped: out of time"
    CPU = "stopped: out of processor time"
    OUTPUT = "stopped: too much output"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Bounds of one run; seconds, bytes, counts."""

    wall_s: float = 5.0
    cpu_s: int = 5
    memory_bytes: int = 512 << 20
    disk_bytes: int = 16 << 20
    files: int = 256
    open_files: int = 64
    threads: int = 32
    output_bytes: int = 8_192


@dataclass(frozen=True, slots=True)
class SandboxRun:
    """output: what was printed (stdout and stderr as they came), its middle cut past output_bytes.
    exit_code: Python's, negative for a signal. layers: what confined it."""

    output: str
    end: RunEnd
    exit_code: int
    seconds: float
    layers: str

    def shown(self) -> str:
        """Returns the text shown to an agent: the output, and how the run ended if it did not go well."""
        text = self.output.rstrip("\n")
        note = f"[{self.end.value}]" if self.end not in (RunEnd.OK, RunEnd.FAILED) else ""
        return "\n".join(part for part in (text, note) if part) or "(no output)"


class Sandbox:
    """Runs code within `limits`; any number of threads may share one.

    packages: folders whose modules the code may import, for example a site-packages with numpy; all
    of them can be read. unprotected: see the module; None asks the environment.
    """

    def __init__(
        self,
        limits: SandboxLimits | None = None,
        packages: Sequence[str | Path] = (),
        unprotected: bool | None = None,
    ) -> None:
        self.limits = limits or SandboxLimits()
        if unprotected is None:
            unprotected = os.environ.get("EARL_SANDBOX") == UNPROTECTED
        self._unprotected = unprotected
        self._packages = [str(Path(folder).resolve()) for folder in packages]

    def check(self) -> str:
        """The layers that this machine permits. Raises SandboxUnavailable if they are not enough."""
        return self.run("").layers

    def run(self, code: str) -> SandboxRun:
        """Runs `code` to its end or a bound. Raises SandboxUnavailable, nothing for what the code does."""
        encoded = code.encode("utf-8", "replace")
        if len(encoded) > MAX_CODE_BYTES:
            refusal = f"the code has {len(encoded)} bytes; at most {MAX_CODE_BYTES} are run"
            return SandboxRun(refusal, RunEnd.FAILED, 1, 0.0, "")
        folder = (
            tempfile.TemporaryDirectory(prefix="earl-sandbox-")
            if self._unprotected
            else nullcontext("/sandbox")
        )
        with folder as home, tempfile.TemporaryFile() as source:
            source.write(encoded)
            source.seek(0)
            return self._run(source.fileno(), home)

    def _run(self, source: int, home: str) -> SandboxRun:
        began = time.monotonic()
        status, status_end = os.pipe()
        try:
            process = subprocess.Popen(
                [*_PYTHON, str(_CHILD), *self._settings(status_end)],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[status_end],
                cwd="/",
                env={
                    "HOME": home,
                    "TMPDIR": home,
                    "LANG": "C.UTF-8",
                    "PYTHONHASHSEED": "0",
                    "PYTHONUTF8": "1",
                },
                start_new_session=True,
            )
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(status_end)
        with process:
            try:
                layers = _started(process, status)
                output, stopped = self._watched(process)
            finally:
                os.close(status)
                # Whatever is left of its group. It was not waited for yet, so its number is still its own.
                os.killpg(process.pid, signal.SIGKILL)
        code = process.returncode
        end = stopped or _end(code)
        return SandboxRun(output, end, code, time.monotonic() - began, layers)

    def _settings(self, status: int) -> list[str]:
        limits = self.limits
        readable = {*_READABLE, *(f"{sys.base_prefix}/{name}" for name in ("lib", "lib64")), *self._packages}
        return [
            f"status={status}",
            f"parent={os.getpid()}",
            f"unprotected={int(self._unprotected)}",
            *(f"{name}={getattr(limits, name)}" for name in _CHILD_LIMITS),
            *([] if self._unprotected else _filters()),
            # A folder before those in it.
            *(f"readable={path}" for path in sorted(readable)),
            *(f"package={path}" for path in self._packages),
        ]

    def _watched(self, process: subprocess.Popen[bytes]) -> tuple[str, RunEnd | None]:
        """The run's output, and why it was stopped if it was."""
        assert process.stdout is not None
        deadline = time.monotonic() + self.limits.wall_s
        kept = _MiddleTruncated(self.limits.output_bytes)
        while _ready(process.stdout.fileno(), deadline):
            piece = os.read(process.stdout.fileno(), 65_536)
            if not piece:
                # Closed by its end, or by the code: then it is given the rest of its time.
                return kept.text(), None if _ends_in_time(process, deadline) else RunEnd.TIMEOUT
            kept.add(piece)
            if kept.size > FLOOD * self.limits.output_bytes:
                return kept.text(), RunEnd.OUTPUT
        return kept.text(), RunEnd.TIMEOUT


class _MiddleTruncated:
    """The beginning and the end of a long output, at most `limit` bytes of it."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        left = self._half - len(self._head)
        self._head += piece[:left]
        self._tail = (self._tail + piece[left:])[-self._half :]

    def text(self) -> str:
        left_out = self.size - len(self._head) - len(self._tail)
        gap = f"\n[{left_out} bytes left out]\n".encode() if left_out else b""
        return (bytes(self._head) + gap + bytes(self._tail)).decode("utf-8", "replace")


@cache
def _filters() -> list[str]:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ARCHITECTURES or sys.byteorder != "little":
        raise SandboxUnavailable(
            f"agent-written Python cannot be confined on {sys.platform} ({machine})", _REMEDY
        )
    return [
        f"filter={program(machine, contained=True).hex()}",
        f"filter_read_only={program(machine, contained=False).hex()}",
    ]


_REMEDY = (
    "run the env host on Linux 5.13 or later where seccomp and user namespaces or Landlock are permitted, "
    f"or, for code that you trust with all that this process may do, set EARL_SANDBOX={UNPROTECTED}"
)


def _ready(descriptor: int, deadline: float) -> bool:
    """Returns whether there is something to read (or an end) before the deadline."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    left = deadline - time.monotonic()
    return left > 0 and bool(poll.poll(left * 1000))


def _started(process: subprocess.Popen[bytes], status: int) -> str:
    """The layers that the child says it has. Raises SandboxUnavailable if it does not get so far."""
    report = ""
    if _ready(status, time.monotonic() + START_S):
        report = os.read(status, 4_096).decode("utf-8", "replace")
    kind, _, rest = report.partition(": ")
    if kind == "ready":
        return rest
    assert process.stdout is not None
    printed = ""
    if _ready(process.stdout.fileno(), time.monotonic() + 1.0):
        printed = os.read(process.stdout.fileno(), 4_096).decode("utf-8", "replace").strip()
    reason = rest or printed or f"not started within {START_S:.0f} s"
    raise SandboxUnavailable(f"agent-written Python cannot be confined on this machine: {reason}", _REMEDY)


def _ends_in_time(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Returns whether it ends before the deadline; it is not waited for."""
    descriptor = os.pidfd_open(process.pid)
    try:
        return _ready(descriptor, deadline)
    finally:
        os.close(descriptor)


def _end(code: int) -> RunEnd:
    if code == 0:
        return RunEnd.OK
    if code == -signal.SIGXCPU:
        return RunEnd.CPU
    return RunEnd.KILLED if code < 0 else RunEnd.FAILED
