"""Arenas on a machine with a card: how fast they are made, and what a card's bytes do in one.

Only what needs a card imports torch: the other check is the cheapest of all.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import xxhash

from benchmarks.children import last_line
from benchmarks.gpu.check import CheckFigures, CheckSettings, judged
from benchmarks.record.checkout import ROOT
from earl.dispatch.describe.regions import ArenaRef
from earl.dispatch.memory.arena import Arena

GB = 1e9
MIB = 1 << 20
READ_S = 60.0


def gb_s(size_bytes: int, seconds: float) -> float:
    return round(size_bytes / seconds / GB, 2)


def fitting(settings: CheckSettings, most_bytes: int) -> int:
    """Whole MiB of an arena: at most half of the shared memory that is free."""
    return max(MIB, min(most_bytes, shutil.disk_usage(settings.arenas).free // 2 // MIB * MIB))


def arena(settings: CheckSettings) -> CheckFigures:
    """Creates an arena, which a trainer's start waits for, and has another process read it."""
    size_bytes = fitting(settings, settings.pick(2048, 512, 16) * MIB)
    started = time.perf_counter()
    with _arena(settings, size_bytes) as (made, memory):
        created_s = time.perf_counter() - started
        memory[:] = np.random.default_rng(0).integers(0, 255, len(memory) // 64, np.uint8).repeat(64)
        return _read_elsewhere(made, memory, {"create_gb_s": gb_s(size_bytes, created_s)})


def arena_from_card(settings: CheckSettings) -> CheckFigures:
    """An arena that CUDA has pinned takes what a card holds, and another process reads the same bytes."""
    import torch

    from benchmarks.gpu.facts import seconds_of

    device, size_bytes = settings.device, fitting(settings, settings.pick(1024, 32, 8) * MIB)
    values = torch.randint(0, 255, (size_bytes,), dtype=torch.uint8, device=device)
    with _arena(settings, size_bytes) as (made, memory):
        target = torch.from_numpy(memory)
        figures = {"pageable_gb_s": gb_s(size_bytes, seconds_of(device, lambda: target.copy_(values)))}
        runtime = torch.cuda.cudart() if settings.on_card else None
        if runtime is not None:
            started = time.perf_counter()
            outcome = runtime.cudaHostRegister(memory.ctypes.data, size_bytes, 0)
            figures["register_gb_s"] = gb_s(size_bytes, time.perf_counter() - started)
            figures["register_outcome"] = int(outcome)
        copied_s = seconds_of(device, lambda: target.copy_(values, non_blocking=True))
        figures["registered_gb_s"] = gb_s(size_bytes, copied_s)
        result = _read_elsewhere(made, memory, figures)
        same = torch.equal(target, values.cpu())
        if runtime is not None:
            runtime.cudaHostUnregister(memory.ctypes.data)
        return judged(result.figures, {}, {"the arena does not hold what the card did": not same})


@contextmanager
def _arena(settings: CheckSettings, size_bytes: int) -> Iterator[tuple[ArenaRef, np.ndarray]]:
    """A new arena, and a region of it that takes all of its memory."""
    made = Arena.create(settings.arenas / "facts", "facts", secrets.randbits(63), size_bytes)
    try:
        yield made.ref, made.allocate(size_bytes).array(np.uint8, (size_bytes,))
    finally:
        made.close()


READER = """
import sys, time, numpy, xxhash
from earl.dispatch.memory.arena import MappedArena
path, nonce, incarnation, start = sys.argv[1], *map(int, sys.argv[2:])
memory = MappedArena(path, nonce, incarnation).memory
into = numpy.zeros(len(memory) - start, numpy.uint8)
began = time.perf_counter()
into[:] = memory[start:]
print(time.perf_counter() - began, xxhash.xxh3_64_hexdigest(into))
"""


def _read_elsewhere(made: ArenaRef, memory: np.ndarray, figures: dict[str, Any]) -> CheckFigures:
    """Adds what another process copies out of the arena, in which `memory` is the last region."""
    start = made.size_bytes - len(memory)
    arguments = [made.path, str(made.nonce), str(made.incarnation), str(start)]
    line = last_line([sys.executable, "-c", READER, *arguments], "a reader", READ_S, ROOT)
    seconds, digest = line.split()
    figures = {**figures, "mib": len(memory) // MIB, "read_gb_s": gb_s(len(memory), float(seconds))}
    expected = xxhash.xxh3_64_hexdigest(memory.data)
    return judged(figures, {}, {"another process reads other bytes than the arena holds": digest != expected})
