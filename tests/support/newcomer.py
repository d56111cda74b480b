"""Somebody with a shell in a fresh clone, who types what a page says.

    me.says("earl up run.toml --name first")        until it ends, with what exit code
    me.interrupts("earl train run.toml", "train 1") Ctrl-C once it has said so
    me.begins("earl logs -f")                       goes on meanwhile
    me.sees("earl top", "tickets", "q")             on a screen of its own

The clone is git's, of the commit that is checked out here, so nothing that is not committed can help; what is
changed and not committed is named, and no part of it. Its virtual environment is a link to this one, since
`make setup` takes minutes (.ci/run types it in a clone that has none). The home is empty. A line is bash's;
its directory and exported variables are the next line's.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.launched import MARK, ROOT, Launched

COMMAND_S = 180.0
# What a terminal's Ctrl-C ends with: a command's own code, or bash's death of the signal.
INTERRUPTED = (130, -signal.SIGINT)
SIZE = struct.pack("HHHH", 50, 160, 0, 0)


class Going:
    """A command that goes on. said: what was read of it."""

    def __init__(self, line: str, process: subprocess.Popen[str]) -> None:
        self.line, self.process, self.said = line, process, ""

    def until(self, pattern: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if re.search(pattern, line):
                return
        pytest.fail(f"{self.line} never said {pattern!r} but:\n{self.said}")

    def ends(self, *codes: int, by: int = 0) -> str:
        """Waits for its end, which a signal may bring about; what it said."""
        if by:
            os.killpg(self.process.pid, by)
        out, _ = self.process.communicate(timeout=COMMAND_S)
        self.said += out
        assert self.process.returncode in (codes or (0,)), f"{self.line}: {self.said}"
        return self.said


def git(where: Path, *arguments: str) -> str:
    """Returns what git printed in the directory of the clone."""
    done = subprocess.run(["git", *arguments], cwd=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout


class Newcomer:
    """longest_s: what a command that ends by itself may take."""

    def __init__(self, directory: Path, longest_s: float = COMMAND_S) -> None:
        self.longest_s = longest_s
        self.clone = directory / "clone"
        if changed := git(ROOT, "status", "--porcelain", "--untracked-files=no"):
            print(f"not committed, so not in the clone:\n{changed}")
        git(ROOT, "clone", "--quiet", "--no-checkout", str(ROOT), str(self.clone))
        git(self.clone, "checkout", "--quiet", "--detach", git(ROOT, "rev-parse", "HEAD").strip())
        (self.clone / ".venv").symlink_to(sys.prefix)
        self.here = self.clone
        self._marked = Launched(directory)
        self._state = directory / "state"
        own = {name: value for name, value in os.environ.items() if not name.startswith(("EARL_", "XDG_"))}
        paths = os.environ["PATH"].split(os.pathsep)
        self.environment = own | {
            "HOME": str(directory / "home"),
            "PATH": os.pathsep.join(place for place in paths if not place.startswith(sys.prefix)),
            "PYTHONPATH": str(self.clone),
            "BROWSER": "true",
            "COLUMNS": "160",
            MARK: self._marked.name,
        }
        Path(self.environment["HOME"]).mkdir()

    def popen(
        self, line: str, stdin: int = subprocess.DEVNULL, said: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """said: where both of its streams go."""
        return subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.here,
            env=self.environment,
            text=True,
            start_new_session=True,
            stdin=stdin,
            stdout=said,
            stderr=subprocess.STDOUT,
        )

    def says(self, line: str, typed: str = "", code: int = 0) -> str:
        """Returns what the command says, on both streams, having ended with this code."""
        # It would install the clone into the environment that the clone only links to.
        assert not line.startswith(("make setup", "make demo")), line
        keep = f'{{ printf "%s\\0" "$PWD"; env -0; }} >{shlex.quote(str(self._state))}'
        process = self.popen(f"{line}\n_code=$?\n{keep}\nexit $_code", stdin=subprocess.PIPE)
        out, _ = process.communicate(typed, timeout=self.longest_s)
        assert process.returncode == code, f"{line} ended with {process.returncode}: {out}"
        here, *variables = self._state.read_text().split("\0")
        self.here = Path(here)
        self.environment = dict(one.split("=", 1) for one in variables if "=" in one)
        return out

    def interrupts(self, line: str, *patterns: str) -> str:
        """Ctrl-C once it has said what matches, one after the other."""
        going = self.begins(line)
        for pattern in patterns:
            going.until(pattern)
        return going.ends(*INTERRUPTED, by=signal.SIGINT)

    def begins(self, line: str, pattern: str = "") -> Going:
        going = Going(line, self.popen(line))
        if pattern:
            going.until(pattern)
        return going

    def sees(self, line: str, text: str, keys: str) -> str:
        """Returns what its screen was sent until it was left with `keys`, pressed once `text` was there."""
        near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, SIZE)
        self.environment["TERM"] = "xterm-256color"
        process = self.popen(line, stdin=far, said=far)
        os.close(far)
        seen = b""
        try:
            while select.select([near], [], [], COMMAND_S)[0]:
                seen += os.read(near, 1 << 16)
                if keys and text.encode() in seen:
                    os.write(near, keys.encode())
                    keys = ""
        except OSError:  # the far end is closed: it has ended
            pass
        os.close(near)
        screen = seen.decode(errors="replace")
        assert not keys and process.wait(COMMAND_S) == 0, f"{line} showed no {text!r}: {screen}"
        return screen

    def waits(self, met: Callable[[], bool]) -> None:
        until = time.monotonic() + COMMAND_S
        while not met():
            assert time.monotonic() < until, "it never came"
            time.sleep(0.1)

    def processes(self) -> dict[int, str]:
        return self._marked.processes()


@contextmanager
def newcomer(directory: Path, longest_s: float = COMMAND_S) -> Iterator[Newcomer]:
    """Demands in the end that nothing goes on; ends what a failed test left."""
    me = Newcomer(directory, longest_s)
    try:
        yield me
        assert me.processes() == {}
    finally:
        for pid in me.processes():
            os.kill(pid, signal.SIGKILL)
