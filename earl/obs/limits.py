"""Memory of this host, or of its container: the total, and what is still available."""

from __future__ import annotations

import os
from pathlib import Path

# What cgroup v2 bounds this container to; "max": nothing.
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")
_CGROUP_STAT = Path("/sys/fs/cgroup/memory.stat")


def host_bytes() -> int:
    """Bytes of memory of this host, or of its container's limit if that is less."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_LIMIT.read_text(encoding="ascii").strip()
    except OSError:
        return physical
    return min(physical, int(limit)) if limit.isdigit() else physical


def available_bytes() -> int:
    """Bytes of memory that processes of this host, or of its container, may still allocate."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
            break
    else:
        free = host_bytes()
    try:
        used = int(_CGROUP_USED.read_text(encoding="ascii"))
        # Files that are cached count, though they are dropped when memory is needed.
        fields = dict(line.split() for line in _CGROUP_STAT.read_text(encoding="ascii").splitlines())
        used -= int(fields.get("inactive_file", 0))
    except (OSError, ValueError):
        return free
    return min(free, host_bytes() - used)
