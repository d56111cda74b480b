"""Peaks of a card's memory against what services.scheduler.memory predicts, each in a fresh process.

trainer, reference   torch's allocator: what it reserved at most        several processes at once
                     (allocated_mib: of that, what was in use at most)
engine               what the whole card uses, beside an empty engine's one at a time
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.gpu.check import CheckFigures, CheckSettings, judged
from benchmarks.memory_model import engine, ranks
from benchmarks.memory_model.cases import MemoryCase, reference, rollout, sizes, trainer
from benchmarks.memory_model.command import record

BROAD = sizes(2048, 8, 16, 4, 128, 5504, 32_000, tied=False)
DEEP = sizes(1024, 24, 16, 4, 64, 2816, 32_000)
VOCABULARY = sizes(1536, 6, 12, 2, 128, 8960, 151_936)
NARROW = {"dtype": "bfloat16"}
AGAIN = {**NARROW, "activation_checkpointing": True}
RANK_CASES: dict[str, MemoryCase] = {
    "trainer": trainer(BROAD, "dp=1", 8192, 1, {**NARROW, "microbatch_tokens": 8192}),
    "trainer recomputed": trainer(BROAD, "dp=1", 8192, 1, {**AGAIN, "microbatch_tokens": 8192}),
    "trainer float32": trainer(BROAD, "dp=1", 2048, 1),
    "trainer short": trainer(BROAD, "dp=1", 1024, 8, NARROW),
    "trainer shared": trainer(
        BROAD, "dp=1", 2048, 4, {**NARROW, "microbatch_tokens": 8192}, shared_tokens=1024
    ),
    "trainer vocabulary": trainer(VOCABULARY, "dp=1", 8192, 1, {**AGAIN, "microbatch_tokens": 8192}),
    "trainer adapters": trainer(BROAD, "dp=1", 4096, 1, {**NARROW, "lora_rank": 16}),
    "trainer deep": trainer(DEEP, "dp=1", 4096, 2, {**AGAIN, "microbatch_tokens": 8192}),
    "reference": reference(BROAD, "dp=1", 8192, 2, **NARROW),
    "reference float32": reference(BROAD, "dp=1", 2048, 2),
    "reference vocabulary": reference(VOCABULARY, "dp=1", 8192, 2, **NARROW),
}
ENGINE_CASES: dict[str, MemoryCase] = {
    "engine": rollout(BROAD, "tp=1", 4096, 32, **NARROW),
    "engine long": rollout(BROAD, "tp=1", 16_384, 8, **NARROW),
    "engine vocabulary": rollout(VOCABULARY, "tp=1", 2048, 64, **NARROW),
    "engine float32": rollout(BROAD, "tp=1", 1024, 32),
}
# For a processor, where the figures are host memory, and nothing is judged.
SMALL = sizes(128, 2, 4, 2, 32, 384, 1024)
SMALL_RANK = {"trainer": trainer(SMALL, "dp=1", 256, 1), "reference": reference(SMALL, "dp=1", 256, 1)}
SMALL_ENGINE = {"engine": rollout(SMALL, "tp=1", 256, 2)}
# |predicted - measured| / measured.
TOLERANCE = {"error": 0.1}
AT_ONCE = 4
MIB = 1 << 20


def rank_peaks(settings: CheckSettings) -> CheckFigures:
    """Trainers and reference ranks; several at once, since each process counts its own."""
    cases = settings.pick(RANK_CASES, SMALL_RANK)
    return _judged(settings, asyncio.run(_ranks(settings, cases)))


def engine_peaks(settings: CheckSettings) -> CheckFigures:
    """Torch engines, one at a time."""
    cases = settings.pick(ENGINE_CASES, SMALL_ENGINE)
    return _judged(settings, asyncio.run(_engines(settings, cases)))


async def _ranks(settings: CheckSettings, cases: Mapping[str, MemoryCase]) -> list[dict[str, Any]]:
    places = asyncio.Semaphore(AT_ONCE)

    async def measured(name: str, case: MemoryCase) -> dict[str, Any]:
        async with places:
            taken = await ranks.peaks(case)
            row = record(name, case, [max(1, taken["bytes"])])
            return row | {"allocated_mib": round(taken.get("allocated_bytes", 0) / MIB, 1)}

    here = {name: replace(case, device=settings.device) for name, case in cases.items()}
    return list(await asyncio.gather(*(measured(name, case) for name, case in here.items())))


async def _engines(settings: CheckSettings, cases: Mapping[str, MemoryCase]) -> list[dict[str, Any]]:
    rows, empty_bytes = [], None
    for name, case in cases.items():
        here = replace(case, device=settings.device)
        if empty_bytes is None:
            empty_bytes = await engine.measure(here.tiny)
        rows.append(record(name, here, [max(1, await engine.measure(here) - empty_bytes)]))
    return rows


def _judged(settings: CheckSettings, rows: list[dict[str, Any]]) -> CheckFigures:
    apart = {row["case"]: row["error"] for row in rows if abs(row["error"]) > TOLERANCE["error"]}
    worst = max(abs(row["error"]) for row in rows)
    figures = {"points": len(rows), "worst_error": worst, "cases": rows}
    return judged(
        figures, TOLERANCE, {f"predictions are apart from peaks: {apart}": settings.on_card and bool(apart)}
    )
