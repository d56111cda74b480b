"""The machine that a result was measured on: what its processor computes natively, and how busy it was."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import time
from pathlib import Path
from typing import Any

from earl.obs.machine import machine
from earl.obs.processor import flags, native_bfloat16

# The processor's flags that decide which kernels torch and oneDNN use.
INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "sve", "bf16")
SAMPLE_S = 0.25


def described() -> dict[str, Any]:
    """Cores, memory, processor and its instruction sets, GPUs, releases of Python and torch."""
    known = flags()
    return {
        **machine(),
        "architecture": platform.machine(),
        "instruction_sets": [name for name in INSTRUCTION_SETS if name in known],
        "native_bfloat16": native_bfloat16(known),
        **of_torch(),
    }


def of_torch() -> dict[str, Any]:
    """cpu_capability: the instruction set that torch's own kernels use, null without torch; and the GPUs.

    Where there are some, also the releases of driver, CUDA, cuDNN and NCCL.
    """
    if importlib.util.find_spec("torch") is None:
        return {"cpu_capability": None, "gpus": []}
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": [{"name": gpu.name, "memory_gib": round(gpu.total_memory / (1 << 30), 1)} for gpu in gpus],
        **(of_cuda(count) if count else {}),
    }


def of_cuda(count: int) -> dict[str, Any]:
    """The software of this machine's GPUs, and whether each of them reads the others' memory."""
    import torch
    from torch.cuda import nccl

    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    release = nccl.version() if torch.distributed.is_nccl_available() else ()
    return {
        "gpu_count": count,
        "driver": driver_release(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, release)) or None,
        "peer_access": all(torch.cuda.can_device_access_peer(a, b) for a, b in pairs) if pairs else None,
    }


def driver_release(file: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The release of NVIDIA's kernel module, for example "580.65.06"; null where there is none."""
    try:
        line = file.read_text(encoding="ascii", errors="replace").partition("\n")[0]
    except OSError:
        return None
    release = re.search(r"\d{3,}(?:\.\d+)+", line)
    return release[0] if release else None


def load() -> dict[str, float | None]:
    """Measures how busy the machine is now.

    load_1m: processes that ran or waited to, mean of the last minute. busy_share: of all cores, 0..1, what
    others than this process used in a sample of SAMPLE_S, the time that a hypervisor took included; null
    where there is no /proc.
    """
    before, used = processor_seconds(), time.process_time()
    time.sleep(SAMPLE_S)
    after, used = processor_seconds(), time.process_time() - used
    share = None
    if before and after and after[1] > before[1]:
        share = (after[0] - before[0] - used) / (after[1] - before[1])
        share = round(min(1.0, max(0.0, share)), 3)
    return {"load_1m": round(os.getloadavg()[0], 2), "busy_share": share}


def processor_seconds(stat: Path = Path("/proc/stat")) -> tuple[float, float] | None:
    """Seconds that all processors together were busy, and all their seconds, since the machine started."""
    try:
        line = stat.read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return None
    # user nice system idle iowait irq softirq steal; guest times are within the first two.
    ticks = [int(field) for field in line.split()[1:9]]
    hertz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / hertz, sum(ticks) / hertz


def machine_class() -> str:
    """One line that tells kinds of machines apart, for example "2 cores, 23.5 GiB, AMD EPYC, bfloat16"."""
    known = machine()
    parts = [f"{known['cores']} cores", f"{known['memory_gib']} GiB", str(known["processor"])]
    return ", ".join([*parts, *(["bfloat16"] if native_bfloat16(flags()) else [])])
