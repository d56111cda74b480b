"""How much memory processes take of the device that they compute on.

A CUDA device says so itself, whoever fills it. On a CPU the device is the host's memory, which all of its
processes share: each says what it holds alone (anonymous pages; not arenas, which many map), and they add up.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from earl.obs.limits import available_bytes as available_bytes
from earl.obs.limits import host_bytes as host_bytes


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """used_bytes of the size_bytes that the device has. host: whose memory it is; "" for a device's own."""

    used_bytes: int
    size_bytes: int
    host: str = ""


def on_host(pids: Sequence[int], times: int = 1) -> DeviceMemory:
    """What these processes hold alone, with as many alike as `times` says; one that ended holds nothing."""
    return DeviceMemory(sum(map(_private_bytes, pids)) * times, host_bytes(), socket.gethostname())


def on_cuda() -> DeviceMemory | None:
    """Of this process's current CUDA device; None if the process does not use it."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    free_bytes, size_bytes = torch.cuda.mem_get_info()
    return DeviceMemory(size_bytes - free_bytes, size_bytes)


def fullest(parts: Iterable[DeviceMemory]) -> float | None:
    """Fraction that is taken of the fullest device, a host being one; None if nothing is known."""
    hosts: dict[str, DeviceMemory] = {}
    fractions = []
    for one in parts:
        if not one.host:
            fractions.append(one.used_bytes / max(1, one.size_bytes))
            continue
        before = hosts.get(one.host)
        used_bytes = one.used_bytes + (before.used_bytes if before is not None else 0)
        hosts[one.host] = DeviceMemory(used_bytes, one.size_bytes, one.host)
    fractions += [one.used_bytes / max(1, one.size_bytes) for one in hosts.values()]
    return max(fractions, default=None)


def forget_peaks(pids: Iterable[int]) -> None:
    """From now on, `peak_bytes` of these processes is of what follows; where the system allows it."""
    for pid in pids:
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            pass


def peak_bytes(pids: Iterable[int]) -> int:
    """The most that these processes held alone at any time, as far as the kernel counts it; see on_host."""
    return sum(map(_peak_bytes, pids))


def cuda_available_bytes() -> int:
    """What this process may still take of its current CUDA device."""
    import torch

    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return torch.cuda.mem_get_info()[0] + cached


def _private_bytes(pid: int) -> int:
    """Resident pages of a process that no file or shared memory is behind."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _peak_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = dict(line.split(":", 1) for line in lines)
    peak, private, files, shared = (
        int(found.get(name, "0 kB").split()[0]) * 1024 for name in ("VmHWM", "RssAnon", "RssFile", "RssShmem")
    )
    return max(private, peak - files - shared)
