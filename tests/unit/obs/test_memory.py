"""Checks how full devices are: a host is one device, and a process holds a part of it."""

from __future__ import annotations

import mmap
import os
import socket
from types import SimpleNamespace

import pytest

from earl.obs.memory import (
    DeviceMemory,
    forget_peaks,
    fullest,
    host_bytes,
    on_cuda,
    on_host,
    peak_bytes,
    rank_devices,
)
from earl.worker_report import WorkerDevice
from services.rollout.engines.contract.stats import device_memory


def test_memory_of_a_host_adds_up_and_a_device_counts_alone() -> None:
    host = [DeviceMemory(10, 100, "a"), DeviceMemory(30, 100, "a"), DeviceMemory(35, 100, "b")]
    assert fullest(host) == 0.4
    assert fullest([*host, DeviceMemory(9, 10), DeviceMemory(8, 10)]) == 0.9
    assert fullest([]) is None


def test_what_a_process_holds_alone_is_a_part_of_its_host() -> None:
    mine = on_host([os.getpid()])
    assert 0 < mine.used_bytes < mine.size_bytes == host_bytes()
    assert on_host([os.getpid()], 3).used_bytes > 2 * mine.used_bytes
    assert on_host([1 << 30]).used_bytes == 0  # no such process


def test_a_process_that_uses_no_cuda_device_knows_of_none() -> None:
    assert on_cuda() is None and device_memory("cuda:1") is None
    here = device_memory("cpu", [os.getpid()])
    assert here is not None and here.host and here.used_bytes >= 2 * on_host([os.getpid()]).used_bytes * 0.9


def test_ranks_on_a_cpu_report_their_host() -> None:
    first, second = rank_devices("cpu", 2)
    assert first == second and (first.kind, first.id, first.number) == ("cpu", socket.gethostname(), 0)
    assert first.total_bytes == host_bytes() and 0 < first.free_bytes <= first.total_bytes


def test_ranks_on_gpus_report_each_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    gib = 1 << 30
    # As torch.cuda has it of a machine that is not this one.
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 1,
        device_count=lambda: 3,
        mem_get_info=lambda: (70 * gib, 80 * gib),
        get_device_properties=lambda index: SimpleNamespace(total_memory=80 * gib, uuid=f"u{index}"),
    )
    assert rank_devices("cuda:1", 2, cuda) == [
        WorkerDevice("cuda", "GPU-u1", 5, 80 * gib, 70 * gib),
        WorkerDevice("cuda", "GPU-u2", 6, 80 * gib),
    ]
    # An older torch knows no UUIDs; and a process without a context leaves GPUs alone.
    cuda.get_device_properties = lambda index: SimpleNamespace(total_memory=80 * gib)
    assert rank_devices("cuda", 1, cuda)[0].id == f"{socket.gethostname()}/5"
    assert rank_devices("cuda") == []


def test_a_peak_stays_until_it_is_forgotten() -> None:
    size = 64 << 20
    forget_peaks([os.getpid(), 1 << 30])
    before = peak_bytes([os.getpid(), 1 << 30])
    # Of the kernel itself: an allocator may keep what is given back.
    held = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, size, mmap.PAGESIZE):
        held[page] = 1
    assert peak_bytes([os.getpid()]) > before + size / 2
    held.close()
    assert peak_bytes([os.getpid()]) > before + size / 2
    forget_peaks([os.getpid()])
    assert peak_bytes([os.getpid()]) < before + size / 2
