"""Measures the memory that processes take of the device that they compute on.

A CUDA device reports it, whichever process uses it. On a CPU the device is the host's memory, which all of
its processes share: each reports what it holds alone (anonymous pages; not arenas, which many map), and these
add up.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.obs.limits import available_bytes as available_bytes
from earl.obs.limits import host_bytes as host_bytes
from earl.worker_report import WorkerDevice


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device: used_bytes of size_bytes. host: the host whose memory it is; "" for a GPU's own."""

    used_bytes: int
    size_bytes: int
    host: str = ""


def on_host(pids: Sequence[int], times: int = 1) -> DeviceMemory:
    """The host memory that these processes hold alone, `times` over; ended processes hold nothing."""
    return DeviceMemory(sum(map(_private_bytes, pids)) * times, host_bytes(), socket.gethostname())


def on_cuda() -> DeviceMemory | None:
    """The memory of this process's current CUDA device; None if the process uses none."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    free_bytes, size_bytes = torch.cuda.mem_get_info()
    return DeviceMemory(size_bytes - free_bytes, size_bytes)


def rank_devices(kind: str, ranks: int = 1, cuda: Any = None) -> list[WorkerDevice]:
    """The devices of this process and of the ranks after it, one for each of so many ranks.

    kind: "cpu", "cuda" or "cuda:2". On CUDA these are this process's current device and those that follow;
    empty where the process has not initialised CUDA: it is not the one that computes there. cuda: what facts
    are taken from, by default torch.cuda.
    """
    if not kind.startswith("cuda"):
        host = WorkerDevice("cpu", socket.gethostname(), 0, host_bytes(), available_bytes())
        return [host] * ranks
    if cuda is None:
        import torch

        cuda = torch.cuda
    if not cuda.is_initialized():
        return []
    first = cuda.current_device()
    devices = []
    for index in range(first, min(first + ranks, cuda.device_count())):
        facts = cuda.get_device_properties(index)
        number = _host_number(index, os.environ.get("CUDA_VISIBLE_DEVICES"))
        uuid = getattr(facts, "uuid", None)
        name = f"GPU-{uuid}" if uuid is not None else f"{socket.gethostname()}/{number}"
        # Asking for another device's free memory would take some of it.
        free_bytes = cuda.mem_get_info()[0] if index == first else 0
        devices.append(WorkerDevice("cuda", name, number, facts.total_memory, free_bytes))
    return devices


def _host_number(index: int, visible: str | None) -> int:
    """The host's number of GPU `index` of this process; `index` where CUDA_VISIBLE_DEVICES names no
    numbers."""
    names = visible.split(",") if visible else []
    shown = names[index].strip() if index < len(names) else ""
    return int(shown) if shown.isdecimal() else index


def fullest(parts: Iterable[DeviceMemory]) -> float | None:
    """The used fraction of the fullest device, a host counting as one; None without any."""
    hosts: dict[str, DeviceMemory] = {}
    fractions = []
    for part in parts:
        if not part.host:
            fractions.append(part.used_bytes / max(1, part.size_bytes))
            continue
        before = hosts.get(part.host)
        used_bytes = part.used_bytes + (before.used_bytes if before is not None else 0)
        hosts[part.host] = DeviceMemory(used_bytes, part.size_bytes, part.host)
    fractions += [part.used_bytes / max(1, part.size_bytes) for part in hosts.values()]
    return max(fractions, default=None)


def forget_peaks(pids: Iterable[int]) -> None:
    """Resets the peaks that `peak_bytes` reads for these processes, where the system allows it."""
    for pid in pids:
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            pass


def peak_bytes(pids: Iterable[int]) -> int:
    """The most that these processes held alone at any time, as far as the kernel counts it; see on_host."""
    return sum(map(_peak_bytes, pids))


def cuda_available_bytes() -> int:
    """Bytes that this process may still allocate on its current CUDA device."""
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
    fields = dict(line.split(":", 1) for line in lines)
    peak, private, files, shared = (
        int(fields.get(name, "0 kB").split()[0]) * 1024
        for name in ("VmHWM", "RssAnon", "RssFile", "RssShmem")
    )
    return max(private, peak - files - shared)
