"""Records a terminal while commands run in it: `python tools/terminal_recording.py OUT.svg`.

    bash on a pseudo-terminal ◄── STEPS, typed key by key
              └─► what it writes, with its times: a cast (asciicast v2) ─► tools/terminal_film.py ─► OUT.svg

The session is for README: the demo in the background, watched until it wins, ended. It takes as long as
that, in a directory of its own, so that paths are relative; a path or the name of this machine is refused.
`--keep KEPT.cast` keeps what was recorded, `--from KEPT.cast` draws it again.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.terminal_film import Cast, Event, Screen, drawn  # noqa: E402

COLUMNS, LINES = 112, 34
# A person's keys, and a person's look at what a command said.
KEY_S, SHOWN_S = 0.05, 1.2
# The title that a prompt sets says how the command ended; nothing of it is seen.
PROMPT = r"\[\e]2;ended $?\a\]\[\e[32m\]$\[\e[0m\] "
ENDED = re.compile(r"ended (\d+)")
STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    """A line that is typed. press: keys that leave it, once the screen has shown what matches `until`.

    speed: how many times as fast it is shown. bound_s: for its end.
    """

    line: str
    until: str = ""
    press: str = ""
    speed: int = 1
    bound_s: float = 120.0


# The win rate is the one share with a decimal on the screen of `earl top`.
STEPS = (
    Step("earl up examples/tictactoe.toml"),
    Step("earl top", until=r" (8[89]|9\d)\.\d%", press="q", speed=10, bound_s=600.0),
    Step("earl stop"),
)
BIN = Path(sys.executable).parent
# Whatever became of the session, nothing of it goes on.
CLEAN_UP = (str(BIN / "earl"), "stop", "--now")


@dataclass(slots=True)
class TerminalSession:
    """A shell on a pseudo-terminal, whose output is recorded while it is read.

    shown_s: how long a command's output is shown, in seconds.
    """

    master: int
    pid: int
    cast: Cast
    screen: Screen
    shown_s: float = SHOWN_S
    began_s: float = field(default_factory=time.monotonic)
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def read(self, bound_s: float) -> bool:
        """Records output until the bound; whether any came. Raises EOFError when the shell ends."""
        if not select.select([self.master], [], [], bound_s)[0]:
            return False
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:  # the shell has ended
            data = b""
        if not data:
            raise EOFError("the shell has ended before the session")
        self.note("o", self._decoder.decode(data))
        return True

    def note(self, kind: str, text: str) -> None:
        self.cast.events.append(Event(time.monotonic() - self.began_s, kind, text))
        if kind == "o":
            self.screen.feed(text)

    def until(self, met: Callable[[], bool], bound_s: float, what: str) -> None:
        """Reads until the condition holds. Raises TimeoutError with the screen's text."""
        end_s = time.monotonic() + bound_s
        while not met():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{what}: not within {bound_s:g} s. The screen:\n{self.screen.text}")
            self.read(min(left_s, 1.0))

    def watch(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self.read(left_s)

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def play(self, step: Step) -> None:
        """Type a command and wait for its end. Raises RuntimeError unless it exits with 0, and as `until`."""
        for key in step.line:
            self.press(key)
            self.watch(KEY_S)
        before = self.screen.titles
        self.note("m", f"{step.speed} {step.line}")
        self.press("\r")
        if step.until:
            pattern = re.compile(step.until)
            self.until(lambda: bool(pattern.search(self.screen.text)), step.bound_s, step.line)
            self.note("m", "1")
            self.watch(self.shown_s)
            self.press(step.press)
        self.until(lambda: self.screen.titles > before, step.bound_s, step.line)
        self.note("m", "1")
        ended = ENDED.search(self.screen.title)
        if ended is None or ended[1] != "0":
            raise RuntimeError(f"{step.line!r} ended with {self.screen.title!r}:\n{self.screen.text}")
        self.watch(self.shown_s)


def recorded(
    steps: Sequence[Step],
    directory: Path,
    *,
    columns: int = COLUMNS,
    lines: int = LINES,
    shown_s: float = SHOWN_S,
) -> Cast:
    """The session, typed into a shell in this directory, and everything that its terminal was sent.

    Raises as Session.play; the shell, and what runs in it then, has ended in any case.
    """
    environment = {
        "HOME": str(directory), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PS1": PROMPT,
        "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", "HISTFILE": "",
        **{name: value for name, value in os.environ.items() if name.startswith("PYTHON")},
    }  # fmt: skip
    shell = shutil.which("bash") or "/bin/bash"
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execve(shell, [shell, "--norc", "--noprofile", "-i"], environment)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    session = TerminalSession(master, pid, Cast(columns, lines), Screen(columns, lines), shown_s)
    try:
        session.until(lambda: session.screen.titles > 0, STOP_S, "the shell")
        session.watch(shown_s)
        for step in steps:
            session.play(step)
        return session.cast
    finally:
        end(session)


def end(session: TerminalSession) -> None:
    """Closes the terminal, which ends the processes that run in it."""
    os.close(session.master)
    descriptor = os.pidfd_open(session.pid)
    try:
        if not select.select([descriptor], [], [], STOP_S)[0]:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.waitpid(session.pid, 0)
    finally:
        os.close(descriptor)


def secrets(directory: Path) -> list[str]:
    """Texts that a recording must not show: names of this machine and of directories on it."""
    paths = {str(path) for path in (directory, directory.resolve(), Path.home(), Path(sys.prefix), ROOT)}
    return sorted({*paths, socket.gethostname()} - {"/", "localhost"})


def readme_session(keep: Path | None) -> Cast:
    """Records STEPS in a directory with the examples alone. keep: a file for the cast, refused or not."""
    with tempfile.TemporaryDirectory(prefix="recording-") as scratch:
        directory = Path(scratch)
        (directory / "examples").symlink_to(ROOT / "examples")
        try:
            cast = recorded(STEPS, directory)
        except BaseException:
            subprocess.run(CLEAN_UP, cwd=directory, check=False, timeout=120)
            raise
        if keep is not None:
            keep.write_text(cast.dumps(), encoding="utf-8")
        cast.refuse(secrets(directory))
        return cast


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="The SVG.")
    parser.add_argument("--keep", type=Path, help="Where the cast goes.")
    parser.add_argument("--from", dest="kept", type=Path, help="Draw this cast; run nothing.")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if arguments.kept and arguments.keep:
        parser.error("--from runs nothing that --keep could keep")
    cast = Cast.loads(arguments.kept.read_text("utf-8")) if arguments.kept else readme_session(arguments.keep)
    cast.refuse(secrets(Path(tempfile.gettempdir())))
    arguments.out.write_text(drawn(cast), encoding="utf-8")
    print(f"{arguments.out.name}: {arguments.out.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main()
