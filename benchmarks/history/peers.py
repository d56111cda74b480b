"""Drafts in vLLM: EARL's, and vLLM's own suffix decoding, each against vLLM without any.

Prompts are `records` at the temperature at which they repeat as much as the paper's (RhymeRL, Sec. 3).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.children import last_line
from benchmarks.history.texts import EPOCH_ANSWERS, records, reference
from benchmarks.history.ways import BATCH_S, Prompt, Way
from benchmarks.record.checkout import ROOT
from benchmarks.record.progress import counted, phase
from earl.errors import ConfigError, EarlError
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.process.interpreter import interpreter_of

TEMPERATURE, SIZES, PROMPTS = 0.7, (1, 8), 8
SIDE_S = 2 * BATCH_S


def vllm_figures(
    spec: EngineSpec, ids_of: Callable[[str], list[int]], new: int, rounds: int
) -> dict[str, Any]:
    """The speed-ups in vLLM, by name, and why there are none where something is missing. new: tokens of an
    answer."""
    vllm = msgspec.structs.replace(spec, name="vllm", engine="vllm")
    prompts = [ids_of(records(number)) for number in range(PROMPTS)]
    figures: dict[str, Any] = {}
    for name, measure in (("vllm_drafts", _drafts), ("vllm_suffix", _suffix)):
        try:
            figures |= measure(vllm, prompts, new, rounds)
        except EarlError as error:
            figures[f"{name}_missing"] = str(error)
    return figures


def _drafts(spec: EngineSpec, prompts: Sequence[list[int]], new: int, rounds: int) -> dict[str, Any]:
    return asyncio.run(_with_drafts(spec, prompts, new, rounds))


async def _with_drafts(
    spec: EngineSpec, prompts: Sequence[list[int]], new: int, rounds: int
) -> dict[str, Any]:
    """EARL's drafts: both engines in turns, another one first each time."""
    phase("starting vLLM")
    draw = random.Random(2)
    figures: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        plain = await Way.start(stack, spec)
        drafting = await Way.start(stack, spec, name="vllm-drafting", drafts=True)
        before = [
            Prompt(ids, [], TEMPERATURE, draw.randrange(1 << 32))
            for ids in prompts
            for _ in range(EPOCH_ANSWERS)
        ]
        answered = await plain.answer(before, new)
        wholes = [
            reference(prompt.ids + answer.ids)
            for prompt, answer in zip(before, answered.answers, strict=True)
        ]
        for size in SIZES:
            ratios: list[float] = []
            rates: list[float] = []
            for number in counted(f"EARL's drafts in vLLM, {size} at once", range(rounds + 1)):
                chosen = [
                    Prompt(
                        prompts[place % PROMPTS],
                        wholes[EPOCH_ANSWERS * (place % PROMPTS) :][:EPOCH_ANSWERS],
                        TEMPERATURE,
                        draw.randrange(1 << 32),
                    )
                    for place in range(number, number + size)
                ]
                rate: dict[Way, float] = {}
                for way in (plain, drafting)[:: (-1) ** number]:
                    await way.answer(chosen, 1, references=False)
                    rate[way] = (await way.answer(chosen, new)).rate
                # In the first round the drafter learns what steps cost.
                if number:
                    ratios.append(rate[drafting] / rate[plain])
                    rates.append(rate[plain])
            figures |= _figures("vllm_drafts", size, ratios, rates)
    return figures


def _suffix(spec: EngineSpec, prompts: Sequence[list[int]], new: int, rounds: int) -> dict[str, Any]:
    """vLLM's suffix decoding, and vLLM without, one after the other."""
    if spec.device != "cpu":
        raise ConfigError("vLLM's suffix decoding is measured on processors alone", "leave it out: --no-vllm")
    sizes = [size for size in SIZES for _ in range(rounds)]
    batches = [
        [prompts[place % PROMPTS] for place in range(number, number + size)]
        for number, size in zip(itertools.count(), sizes, strict=False)
    ]
    job = {
        "model": spec.model_dir, "dtype": spec.dtype, "threads": spec.threads,
        "context": spec.max_context_tokens, "sequences": spec.max_sequences, "new": new,
        "temperature": TEMPERATURE, "epoch": list(prompts), "batches": batches,
    }  # fmt: skip
    rates: dict[bool, list[float]] = {}
    for suffix in counted("vLLM without and with its suffix decoding", (True, False)):
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "job.json"
            path.write_text(json.dumps({**job, "suffix": suffix}), encoding="utf-8")
            command = [interpreter_of(spec), "-m", "benchmarks.history.vllm_side", str(path)]
            line = last_line(command, "vLLM by itself", SIDE_S, cwd=ROOT)
        rates[suffix] = [tokens / seconds for seconds, tokens in json.loads(line)["batches"]]
    figures: dict[str, Any] = {}
    for size in SIZES:
        chosen = [place for place, each in enumerate(sizes) if each == size]
        plain = statistics.median(rates[False][place] for place in chosen)
        figures |= _figures("vllm_suffix", size, [rates[True][place] / plain for place in chosen], [plain])
    return figures


def _figures(name: str, size: int, ratios: Sequence[float], rates: Sequence[float]) -> dict[str, Any]:
    return {
        f"{name}_speedup_b{size}": round(statistics.median(ratios), 3),
        f"{name}_range_b{size}": [round(min(ratios), 3), round(max(ratios), 3)],
        f"{name}_plain_tokens_per_s_b{size}": round(statistics.median(rates), 1),
    }
