"""The machine that something was measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# There where NVIDIA's driver is; found without loading torch.
NVIDIA = Path("/dev/nvidiactl")


def machine() -> dict[str, str | int | float]:
    """Cores that this process may use, memory, processor, Python and torch."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "processor": processor(),
        "python": platform.python_version(),
        "torch": installed("torch"),
    }


def computes_on_gpu(device: str) -> bool:
    """Returns whether a stage on this device ("auto", "cpu" or "cuda") uses a GPU of this machine."""
    return device == "cuda" or (device == "auto" and NVIDIA.exists())


def processor() -> str:
    """The processor's model as Linux names it; elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def installed(package: str) -> str:
    """The version of an installed package; "" if it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
