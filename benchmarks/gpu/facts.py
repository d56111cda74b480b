"""Facts of a card that decisions of EARL rest on: how fast copies are, which attention kernels take what.

Every function is the same on a processor, where its figures say nothing; tests run it there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.check import CheckFigures, CheckSettings, judged

GB = 1e9
MIB = 1 << 20


def gb_s(size_bytes: int, seconds: float) -> float:
    return round(size_bytes / seconds / GB, 2)


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(device: str, work: Callable[[], object], repetitions: int = 3) -> float:
    """The shortest of several calls, after one that warms up; the device has finished before and after."""
    work()
    taken = []
    for _ in range(repetitions):
        synchronise(device)
        started = time.perf_counter()
        work()
        synchronise(device)
        taken.append(time.perf_counter() - started)
    return min(taken)


def copies(settings: CheckSettings) -> CheckFigures:
    """GB/s between host and card, pageable and pinned; and the ways in which a version may leave the card:
    cast on the host, and cast on the card."""
    device, count = settings.device, settings.pick(64, 16, 1) * MIB
    there = torch.randn(count, device=device)
    back = torch.empty(count)
    pinned = torch.empty(count, pin_memory=settings.on_card)
    narrow = torch.empty(count, dtype=torch.bfloat16)
    narrow_pinned = torch.empty(count, dtype=torch.bfloat16, pin_memory=settings.on_card)
    other = torch.empty_like(there)
    work: dict[str, tuple[Callable[[], object], int]] = {
        "to_card_pageable": (lambda: there.copy_(back), 4 * count),
        "to_card_pinned": (lambda: there.copy_(pinned, non_blocking=True), 4 * count),
        "to_host_pageable": (lambda: back.copy_(there), 4 * count),
        "to_host_pinned": (lambda: pinned.copy_(there, non_blocking=True), 4 * count),
        "on_card": (lambda: other.copy_(there), 4 * count),
        # Without a cast on the card torch copies float32, and casts on the host.
        "published_cast_on_host": (lambda: narrow.copy_(there), 2 * count),
        "published_cast_on_card": (lambda: narrow.copy_(there.to(torch.bfloat16)), 2 * count),
        "published_cast_on_card_pinned": (
            lambda: narrow_pinned.copy_(there.to(torch.bfloat16), non_blocking=True),
            2 * count,
        ),
    }
    back.normal_()
    pinned.copy_(back)
    figures: dict[str, Any] = {"mib": 4 * count // MIB}
    for name, (copy, size_bytes) in work.items():
        figures[f"{name}_gb_s"] = gb_s(size_bytes, seconds_of(device, copy))
    synchronise(device)
    expected = there.to(torch.bfloat16).cpu()
    wrong = not (torch.equal(narrow, expected) and torch.equal(narrow_pinned, expected))
    return judged(figures, {}, {"what was cast on the card is not what the host casts": wrong})


def attention_backends(settings: CheckSettings) -> CheckFigures:
    """Tries torch's attention kernels on what EARL asks for, and measures their milliseconds."""
    device, length = settings.device, settings.pick(4096, 256, 64)
    heads, kv_heads, size = 32, 8, 128
    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "math": SDPBackend.MATH,
    }
    figures: dict[str, Any] = {"tokens": length}
    for dtype in (torch.bfloat16, torch.float32):
        query = torch.randn(1, heads, length, size, device=device, dtype=dtype)
        key = torch.randn(1, kv_heads, length, size, device=device, dtype=dtype)
        mask = torch.ones(length, length, device=device, dtype=torch.bool).tril()
        cases: dict[str, tuple[torch.Tensor, dict[str, Any]]] = {
            "causal_gqa": (query, {"is_causal": True, "enable_gqa": True}),
            "mask_gqa": (query, {"attn_mask": mask, "enable_gqa": True}),
            "decode_gqa": (query[:, :, -1:], {"enable_gqa": True}),
        }
        for case, (queries, arguments) in cases.items():
            figures[f"{str(dtype)[6:]} {case}"] = {
                name: _attention_ms(device, backend, queries, key, arguments)
                for name, backend in (backends | {"default": None}).items()
            }
    flash = figures["bfloat16 causal_gqa"]["flash"] is not None
    no_default = [name for name, row in figures.items() if isinstance(row, dict) and row["default"] is None]
    return judged(
        figures,
        {},
        {
            "flash attention takes no causal bfloat16 with grouped heads": settings.on_card and not flash,
            f"torch computes none of {no_default}": bool(no_default),
        },
    )


def _attention_ms(
    device: str, backend: SDPBackend | None, query: torch.Tensor, key: torch.Tensor, arguments: dict[str, Any]
) -> float | None:
    """Milliseconds, or None if the kernel does not take it. backend: None: the one that torch chooses."""

    def work() -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, key, **arguments)

    try:
        if backend is None:
            return round(1e3 * seconds_of(device, work), 3)
        with sdpa_kernel([backend]):
            return round(1e3 * seconds_of(device, work), 3)
    except RuntimeError:  # no such kernel, or it is out of memory
        return None
