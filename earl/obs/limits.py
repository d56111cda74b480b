"""Memory and cores of this host, or of its container."""

from __future__ import annotations

import os
from pathlib import Path

# What cgroup v2 bounds this container to; "max": nothing.
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")
_CGROUP_STAT = Path("/sys/fs/cgroup/memory.stat")
_CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")


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


def usable_cores() -> float:
    """Cores that this process may use, or the part of them that its container is bounded to."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, cpu_quota() or cores)


def cpu_quota() -> float:
    """Cores that this container's cgroup is bounded to; 0 for no bound."""
    return quota(_CGROUP_CPU.read_text(encoding="ascii") if _CGROUP_CPU.is_file() else "max 100000")


def quota(text: str) -> float:
    """Cores of a cgroup's cpu.max, such as "150000 100000"; 0 for "max"."""
    bound, period = text.split()
    return int(bound) / int(period) if bound.isdigit() else 0.0
