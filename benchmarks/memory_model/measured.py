"""The peak of the memory that a process had of its own, as the kernel counts it.

What is mapped from files and what lies in arenas (shared memory) belongs to others and is left out.
"""

from __future__ import annotations

from pathlib import Path


def peak_bytes(process: int | str = "self") -> int:
    """Most private memory since the process started."""
    figures = _status(process)
    return figures["VmHWM"] - figures["RssFile"] - figures["RssShmem"]


def present_bytes(process: int | str = "self") -> int:
    """Private memory that is resident now."""
    return _status(process)["RssAnon"]


def _status(process: int | str) -> dict[str, int]:
    lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    pairs = (line.split(":", 1) for line in lines)
    return {name: int(value.split()[0]) * 1024 for name, value in pairs if value.endswith(" kB")}
