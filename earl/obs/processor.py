"""The instructions of a processor, and whether it computes bfloat16 by them or emulates it.

Measured with torch 2.11 and oneDNN on one core, a linear layer of SmolLM2-135M (576 to 1,536), bfloat16's
FLOP/s as a multiple of float32's, for 512 rows and for 8; the same processor, its instructions limited by
ONEDNN_MAX_CPU_ISA:

    AVX2                         0.10    0.45
    AVX-512 without BF16         0.21    0.77
    AVX-512 with BF16            0.62    1.7
    AMX                          8.6     2.8

torch.ops.mkldnn._is_mkldnn_bf16_supported() is true from the second line on: it shows whether oneDNN takes
such tensors, not whether that is fast. So the flags decide here. No torch is needed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

# As /proc/cpuinfo names them, the fastest first; the last is Arm's.
BFLOAT16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")
# CUDA devices compute bfloat16 from this capability (Ampere) on.
BFLOAT16_CAPABILITY = (8, 0)
CPUINFO = Path("/proc/cpuinfo")
# oneDNN limits itself by it; and how the flags begin that each of its values rules out.
LIMIT = "ONEDNN_MAX_CPU_ISA"
RULED_OUT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2"), ("avx512", "amx")),
    **dict.fromkeys(("AVX512_CORE", "AVX512_CORE_VNNI"), ("avx512_bf16", "avx512_fp16", "amx")),
    "AVX512_CORE_BF16": ("avx512_fp16", "amx"),
    **dict.fromkeys(("AVX512_CORE_FP16", "AVX10_1_512"), ("amx",)),
}


def flags() -> frozenset[str]:
    """The instruction sets of this machine's first processor that oneDNN may use.

    Empty where the system does not list them. ONEDNN_MAX_CPU_ISA in the environment limits them.
    """
    try:
        listed = parse_flags(CPUINFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return frozenset()
    return usable(listed, os.environ.get(LIMIT, ""))


def usable(flags: Collection[str], limit: str) -> frozenset[str]:
    """Returns the flags that a value of ONEDNN_MAX_CPU_ISA permits; all for "" or an unknown value."""
    ruled_out = RULED_OUT.get(limit.strip().upper(), ())
    return frozenset(flag for flag in flags if not flag.startswith(ruled_out))


def parse_flags(cpuinfo: str) -> frozenset[str]:
    """Parses the first `flags` (x86) or `Features` (Arm) line of /proc/cpuinfo."""
    for line in cpuinfo.splitlines():
        name, _, listed = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(listed.split())
    return frozenset()


def bfloat16_instructions(flags: Collection[str]) -> list[str]:
    """The instruction sets of a processor that compute bfloat16, the fastest first."""
    return [name for name in BFLOAT16_INSTRUCTIONS if name in flags]


def native_bfloat16(flags: Collection[str]) -> bool:
    """Returns whether a processor with these instruction sets computes bfloat16 without emulation."""
    return bool(bfloat16_instructions(flags))


def onednn_bfloat16(flags: Collection[str]) -> bool:
    """Returns whether oneDNN takes bfloat16 on a processor with these instruction sets, fast or not."""
    return {"avx512bw", "avx512vl", "avx512dq"} <= {*flags} or "bf16" in flags


def native_on_cuda(capability: tuple[int, int]) -> bool:
    """Returns whether a CUDA device of this compute capability does."""
    return capability >= BFLOAT16_CAPABILITY
