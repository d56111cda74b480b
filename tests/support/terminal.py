"""A command of this process on a pseudo-terminal: what its screen is sent."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading

import pytest

from earl.cli.main import main

LINES = 24


def on_terminal(line: str, monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> tuple[object, str]:
    """The exit code of a command, and all that it sent to its terminal. line: without `earl`."""
    near, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
    received: list[bytes] = []
    reader = threading.Thread(target=read, args=(near, received))
    reader.start()
    with monkeypatch.context() as patch, open(far, "w", encoding="utf-8") as screen:
        for name in ("FORCE_COLOR", "NO_COLOR"):
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", str(columns))
        patch.setenv("LINES", str(LINES))
        patch.setattr(sys, "argv", ["earl", *line.split()])
        patch.setattr(sys, "stdout", screen)
        patch.setattr(sys, "stderr", screen)
        with pytest.raises(SystemExit) as ended:
            main()
    reader.join()
    os.close(near)
    return ended.value.code, b"".join(received).decode().replace("\r\n", "\n")


def read(descriptor: int, received: list[bytes]) -> None:
    """Reads until the far end is closed, which a pseudo-terminal reports as an error."""
    try:
        while part := os.read(descriptor, 1 << 16):
            received.append(part)
    except OSError:
        return


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)
