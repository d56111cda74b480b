"""KV that goes from one engine to another on the device, and switches of a pool that works.

A card has no second one for tp: there a switch changes how many engines share it. Several cards, and the
processor's ranks, also change tp.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.gpu.check import CheckFigures, CheckSettings, CheckSkipped, judged
from benchmarks.gpu.models import half_billion_config, tiny_config, write_checkpoint
from benchmarks.reparallelize.model import RUN, published
from benchmarks.reparallelize.rollout import Sequence, SwitchWork, compare, measure
from earl.models.spec import ModelSpec
from services.rollout.engines.contract.engine import Engine, EngineSpec, GenerateRequest
from services.rollout.engines.process.client import EngineProcess

CALL_S, START_S = 60.0, 180.0
SESSIONS, TURN_TOKENS = 8, 16
# Nats: of float32 engines' log-probs for the same tokens.
LOGPROB_DIFFERENCE = 1e-3
# Part of the card's free memory that the KV of each of two engines takes where a switch must be cold.
COLD_SHARE = 0.4


def handover(settings: CheckSettings) -> CheckFigures:
    """Eight sessions' KV moves between two engines, which then continue as the old one does."""
    model = settings.directory / "model"
    prompt_tokens = settings.pick(4096, 128, 24)
    config = settings.pick(half_billion_config(8192), tiny_config(), tiny_config(layers=1))
    spec = write_checkpoint(model, config, "float32", settings.device)
    return asyncio.run(_handover(settings, model, spec, prompt_tokens))


async def _handover(
    settings: CheckSettings, model: Path, spec: ModelSpec, prompt_tokens: int
) -> CheckFigures:
    base = EngineSpec(
        name="",
        model_dir=str(model),
        device=settings.device,
        threads=2,
        max_sequences=SESSIONS + 2,
        max_context_tokens=prompt_tokens + 4 * TURN_TOKENS,
        run=RUN,
        arena_dir=str(settings.arenas),
        start_s=START_S,
    )
    async with AsyncExitStack() as stack, published(model, spec, settings.directory) as weights:
        where = {"redis_url": weights.redis_url, "data_plane": weights.data_plane}
        old, new = [
            await _started(stack, msgspec.structs.replace(base, name=name, **where))
            for name in ("old", "new")
        ]
        generator = np.random.default_rng(0)
        sequences = [
            Sequence(number, generator.integers(0, spec.vocab, prompt_tokens).tolist())
            for number in range(SESSIONS)
        ]
        await asyncio.gather(*(_turn(old, sequence) for sequence in sequences))
        started = time.perf_counter()
        offer = await old.offer_kv("gpu", {}, CALL_S)
        offered_s = time.perf_counter() - started
        started = time.perf_counter()
        report = await new.take_kv(offer, CALL_S)
        taken_s = time.perf_counter() - started
        await old.withdraw_kv("gpu")
        before = (await new.stats()).prefilled_tokens
        moved = [
            Sequence(each.number, each.prompt, list(each.ids), list(each.logprobs)) for each in sequences
        ]
        await asyncio.gather(*(_turn(new, sequence) for sequence in moved))
        computed = (await new.stats()).prefilled_tokens - before
        await asyncio.gather(*(_turn(old, sequence) for sequence in sequences))
    pairs = [compare(a, b) for a, b in zip(sequences, moved, strict=True)]
    difference = max(pair.logprob_difference for pair in pairs)
    figures = {
        "sessions": report.sessions,
        "tokens": report.tokens,
        "mib": round(report.size_bytes / (1 << 20), 1),
        "offer_s": round(offered_s, 4),
        "take_s": round(taken_s, 4),
        "gb_s": round(report.size_bytes / (offered_s + taken_s) / 1e9, 2),
        "computed_again_tokens": computed,
        "ties": sum(pair.tie for pair in pairs),
        "max_logprob_diff": difference,
    }
    return judged(
        figures,
        {"max_logprob_diff": LOGPROB_DIFFERENCE, "tokens": "equal, but for ties"},
        {
            "not every session moved": report.sessions != SESSIONS,
            "tokens differ from those of the old engine": not all(pair.exact for pair in pairs),
            f"log-probs differ by {difference}": difference > LOGPROB_DIFFERENCE,
            # The last token of each session has no KV yet.
            f"{computed} tokens were computed again": computed > SESSIONS,
        },
    )


async def _turn(engine: Engine, sequence: Sequence) -> None:
    request = GenerateRequest(
        request_id=f"{sequence.number} {len(sequence.ids)}",
        ids=sequence.prompt + sequence.ids,
        max_new_tokens=TURN_TOKENS,
        temperature=0.0,
        session=f"s{sequence.number}",
    )
    generation = await engine.generate_all(request)
    sequence.ids += generation.ids
    sequence.logprobs += generation.logprobs


async def _started(stack: AsyncExitStack, spec: EngineSpec) -> Engine:
    engine = EngineProcess(spec)
    stack.push_async_callback(engine.stop)
    await engine.start()
    return engine


def warm_switch(settings: CheckSettings) -> CheckFigures:
    """Two engines become one and two again while all sequences run: the new start beside the old."""
    return _switched(settings, work_of(settings, engines=(2, 1, 2)), cold=False)


def cold_switch(settings: CheckSettings) -> CheckFigures:
    """Two engines whose KV fills the card become one: they end before it starts."""
    work = work_of(settings, engines=(2, 1), cold=True)
    if settings.on_card:
        work = replace(work, slots=_slots_that_fill(work, config_for(settings)))
    return _switched(settings, work, cold=True)


def tp_switch(settings: CheckSettings) -> CheckFigures:
    """Engines of tp 1 become one of tp 2, and again two: KV is handed over by heads."""
    return _switched(settings, work_of(settings, tp_values=(1, 2, 1)), cold=False)


def work_of(
    settings: CheckSettings,
    *,
    engines: tuple[int, ...] = (),
    tp_values: tuple[int, ...] = (1,),
    cold: bool = False,
) -> SwitchWork:
    """Sequences that run until the last switch has ended."""
    return SwitchWork(
        sequences=settings.pick(16, 4, 2),
        prompt_tokens=settings.pick(1024, 64, 24),
        # What is generated while engines start, and no more.
        new_tokens=settings.pick(6144, 1900),
        turn_tokens=settings.pick(128, 16, 4),
        # A model this small would be at its context's end before an engine has started.
        pause_s=settings.pick(0.0, 0.5),
        tp_values=tp_values,
        cold=cold,
        device=settings.device,
        engines=engines,
        standby=False,
    )


def config_for(settings: CheckSettings) -> dict[str, Any]:
    return settings.pick(half_billion_config(8192), tiny_config(), tiny_config(layers=1))


def _slots_that_fill(work: SwitchWork, config: dict[str, Any]) -> int:
    """Sequences whose KV is COLD_SHARE of the card's free memory."""
    import torch

    token_bytes = 4 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    free_bytes = torch.cuda.mem_get_info()[0]
    return max(work.sequences, int(COLD_SHARE * free_bytes / (token_bytes * work.context_tokens)))


def _switched(settings: CheckSettings, work: SwitchWork, *, cold: bool) -> CheckFigures:
    """Measures the switches, and judges that nothing was lost, and that each was as it should be."""
    model = settings.directory / "model"
    spec = write_checkpoint(model, config_for(settings), "float32", settings.device)

    async def measured() -> dict[str, Any]:
        async with published(model, spec, settings.directory) as weights:
            return await measure(work, model, weights)

    figures = asyncio.run(measured())
    kinds = [switch["cold"] for switch in figures["switches"]]
    if not cold and not settings.on_card and any(kinds):
        raise CheckSkipped("this machine has not enough free memory for a warm switch", "free some")
    return judged(
        figures,
        {"max_logprob_diff": LOGPROB_DIFFERENCE, "lost_sequences": 0, "rolled_back": 0},
        {
            f"{figures['lost_sequences']} sequences are lost": figures["lost_sequences"] > 0,
            f"{figures['rolled_back']} switches were rolled back": figures["rolled_back"] > 0,
            "tokens differ from those of an unswitched run": not figures["token_exact"],
            f"log-probs differ by {figures['max_logprob_diff']}": (
                figures["max_logprob_diff"] > LOGPROB_DIFFERENCE
            ),
            f"of {len(kinds)} switches {sum(kinds)} were cold": any(kind is not cold for kind in kinds),
        },
    )
