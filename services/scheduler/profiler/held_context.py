"""The longest context that some layout of a run's machine holds, by the memory model. Pure.

    the layouts that hold most ─► one context of n tokens in the engines and in the trainer ─► fits? ─► more
                                                                                         └─► fewer tokens

With a selector, stages may change to the layout that holds most; without one they stay as they begin. One
context at a time has to fit: the others wait then. Where stages draw on one pool of devices and a profile
decides their layouts, the division that holds most counts: a context that the devices of the present division
do not hold waits for a move.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from earl.config.context_bound import UNKNOWN_TOKENS
from earl.config.device_pool import first_devices, first_layouts, most_devices
from earl.config.run import RunConfig
from earl.config.trainer import PASS_TOKENS
from earl.models.spec import UNBOUNDED_POSITIONS, ModelSpec
from earl.models.tp import rank_heads
from earl.parallelism import REFERENCE, ROLLOUT, STAGES, TRAINER, Parallelism
from earl.stack.placement import Placement
from services.scheduler.memory.node import NodePlan, host_plan, kv_tokens_within, node_plan, usable_bytes
from services.scheduler.memory.parts import ITEM_BYTES, ceil_div
from services.scheduler.memory.rollout import PAGE_BYTES
from services.scheduler.profile.stages import held_tokens, parallelisms

# The search ends when it knows the bound to so much of it.
PRECISION = 1 / 128
# A token's float32 log-prob, twice: the reference leaves half of what is free to the lease after this one.
LEASE_BYTES = 8
# The torch engine maps the KV of all its slots, be it written or not: a process has so many addresses for it.
MAPPED_BYTES = 1 << 45


@dataclass(frozen=True, slots=True)
class HeldContext:
    """tokens: of the longest context. reason: what bounds it, as a person reads it."""

    tokens: int
    reason: str


def with_held(config: RunConfig, tokens: int) -> RunConfig:
    """The configuration with contexts of so many tokens, if the run file leaves them open."""
    return config.model_copy(
        update={"rollout": config.rollout.model_copy(update={"held_context_tokens": tokens})}
    )


@dataclass(frozen=True, slots=True)
class DividedRun:
    """A run whose stages have the devices of a division of its pool, and where they are; without a pool the
    run as it begins."""

    config: RunConfig
    placement: Placement


def held_by_division(
    config: RunConfig, spec: ModelSpec, placement: Placement, device_bytes: int, host_bytes: int
) -> tuple[DividedRun, HeldContext]:
    """The division of the run's pool that holds the longest context, and that context, as held_context has
    it; of several the one that the run begins with, or the first. Raises IllegalParallelism."""
    divided = DividedRun(config, placement)
    best = divided, held_context(config, spec, placement, device_bytes, host_bytes)
    for other in divisions_of(config, placement):
        held = held_context(other.config, spec, other.placement, device_bytes, host_bytes)
        if held.tokens > best[1].tokens:
            best = other, held
    return best


def divisions_of(config: RunConfig, placement: Placement) -> Iterator[DividedRun]:
    """The divisions of a run's pool, with devices for whole replicas of those that each stage begins with;
    none where layouts are not decided, since a division alone holds no longer contexts."""
    if not (config.stack.pool_devices and config.selector_decides):
        return
    sizes = {stage: math.prod(layout.replica) for stage, layout in first_layouts(config).items()}
    sizes[TRAINER] = 1  # the selector splits its ranks in any way
    counts = [range(size, most_devices(config, stage) + 1, size) for stage, size in sizes.items()]
    begins = tuple(first_devices(config).values())
    for division in product(*counts):
        if sum(division) != config.stack.pool_devices or division == begins:
            continue
        devices = dict(zip(sizes, division, strict=True))
        rollout, trainer, reference = config.rollout, config.trainer, config.reference
        sections: dict[str, Any] = {
            "rollout": rollout.model_copy(update={"engines": devices[ROLLOUT] // rollout.tp}),
            "trainer": trainer.model_copy(update={"ranks": devices[TRAINER], "tp": 1, "cp": 1}),
        }
        if REFERENCE in devices:
            dp = devices[REFERENCE] // reference.tp
            sections["reference"] = reference.model_copy(update={"dp": dp})
        places = {f"{ROLLOUT}-0" if stage == ROLLOUT else stage: count for stage, count in devices.items()}
        slots = {process: tuple(range(count)) for process, count in places.items()}
        yield DividedRun(
            config.model_copy(update=sections), replace(placement, devices={**placement.devices, **slots})
        )


def held_context(
    config: RunConfig, spec: ModelSpec, placement: Placement, device_bytes: int, host_bytes: int
) -> HeldContext:
    """The longest context that the machine holds, at least UNKNOWN_TOKENS where the model has positions for
    them.

    device_bytes: of each GPU. host_bytes: of the machine; 0: what computes on its processor bounds nothing.
    Raises IllegalParallelism.
    """
    widest = with_widest(config, spec)
    most, reason = spec.max_positions, f"the model has {spec.max_positions:,} positions"
    if most >= UNBOUNDED_POSITIONS:
        reason = "nothing that is known here bounds them"
    given = held_tokens(ROLLOUT, config, spec, Parallelism(widest.rollout.engines, widest.rollout.tp))
    on_gpus = "rollout-0" in placement.on_gpus
    if given is not None and given < most:
        page = _page_tokens(config, spec, on_gpus)
        most, reason = max(1, int(given) // page * page), f"rollout.kv_tokens = {config.rollout.kv_tokens:,}"
    for role, stage in config.column_stages.items():
        if stage.arena_bytes and (of_arena := stage.arena_bytes // LEASE_BYTES) < most:
            most, reason = of_arena, f"{role}.arena_bytes = {stage.arena_bytes:,}"
    if (paced := _paced_tokens(widest)) < most:
        most, reason = int(paced), "the memory of the paced devices' table"
    if config.rollout.engine == "torch" and not on_gpus and (mapped := _mapped_tokens(widest, spec)) < most:
        most, reason = mapped, f"{config.rollout.max_sequences} slots fill the addresses of an engine"

    def plans(tokens: int) -> list[NodePlan]:
        changed = _alone(widest, tokens)
        kv_tokens = changed.rollout.kv_tokens or _least_kv_tokens(widest, tokens, on_gpus)
        rollout = changed.rollout.model_copy(update={"kv_tokens": kv_tokens})
        changed = changed.model_copy(update={"rollout": rollout})
        on_host = host_bytes and any(process not in placement.on_gpus for process in placement.devices)
        made = [node_plan(changed, spec, placement, device_bytes)] if placement.gpus else []
        return [*made, host_plan(changed, spec, placement, host_bytes)] if on_host else made

    def fits(tokens: int) -> bool:
        return all(
            plan.device_total(number) <= usable_bytes(config, plan)
            for plan in plans(tokens)
            for number in range(plan.gpus or 1)
        )

    low = min(UNKNOWN_TOKENS, most)
    high = min(2 * low, most)
    while high < most and fits(high):
        low, high = high, min(2 * high, most)
    if high == most and fits(most):
        return HeldContext(most, reason)
    while high - low > max(1, PRECISION * low):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return HeldContext(low, _memory_reason(config, plans(low)))


def most_kv_tokens(
    config: RunConfig, spec: ModelSpec, placement: Placement, engines_bytes: int, held: int
) -> int:
    """The most KV of an engine as the run begins, with which the layout that holds most still fits beside a
    context of `held` tokens in every stage. engines_bytes: of what the engines compute on."""
    on_gpus = "rollout-0" in placement.on_gpus
    widest = with_widest(config, spec)
    least = _least_kv_tokens(widest, held, on_gpus)
    of_widest = kv_tokens_within(_alone(widest, held), spec, placement, engines_bytes, least)
    heads, heads_of_widest = (rank_heads(spec, tp)[1] for tp in (config.rollout.tp, widest.rollout.tp))
    return of_widest * heads_of_widest // heads


def held_kv_tokens(config: RunConfig, spec: ModelSpec, tokens: int, *, on_gpus: bool) -> int:
    """KV of an engine as the run begins, so that the layout that holds most holds a context of `tokens`; 0
    where the run file bounds contexts, which then decides."""
    if config.rollout.max_context_tokens:
        return 0
    widest = with_widest(config, spec)
    heads, of_widest = (rank_heads(spec, tp)[1] for tp in (config.rollout.tp, widest.rollout.tp))
    # An engine counts whole pages: less than one is none.
    least = whole_pages(config, spec, _least_kv_tokens(widest, tokens, on_gpus), on_gpus=on_gpus)
    return ceil_div(least * of_widest, heads)


def held_by_kv(config: RunConfig, spec: ModelSpec, held: HeldContext, *, on_gpus: bool) -> HeldContext:
    """`held`, or less of it where the KV that the run begins with holds no such context in any layout."""
    if not config.rollout.kv_tokens:
        return held
    widest = with_widest(config, spec)
    layout = Parallelism(widest.rollout.engines, widest.rollout.tp)
    given = held_tokens(ROLLOUT, config, spec, layout)
    assert given is not None
    page = _page_tokens(config, spec, on_gpus)
    tokens = int(given) // _least_kv_tokens(widest, 1, on_gpus) // page * page
    if tokens >= held.tokens:
        return held
    return HeldContext(
        max(1, tokens), "the KV that fits beside weights in the layout that the run begins with"
    )


def with_widest(config: RunConfig, spec: ModelSpec) -> RunConfig:
    """The configuration with each stage in the layout that holds most of one sequence, of those that it may
    ever have."""
    if not config.selector_decides:
        return config
    rollout, trainer, reference = config.rollout, config.trainer, config.reference
    widest = {
        stage: max(parallelisms(stage, config, spec), key=lambda layout: (layout.tp * layout.cp, layout.cp))
        for stage in STAGES
        if stage != REFERENCE or trainer.uses_reference
    }
    layout = widest[ROLLOUT]
    changes = {"engines": layout.dp, "tp": layout.tp}
    changes["max_sequences"] = -(-rollout.max_sequences * layout.tp // rollout.tp)
    heads, of_widest = (rank_heads(spec, tp)[1] for tp in (rollout.tp, layout.tp))
    changes["kv_tokens"] = rollout.kv_tokens * heads // of_widest
    sections: dict[str, Any] = {"rollout": rollout.model_copy(update=changes)}
    layout = widest[TRAINER]
    sections["trainer"] = trainer.model_copy(update={"tp": layout.tp, "cp": layout.cp})
    if layout := widest.get(REFERENCE):
        sections["reference"] = reference.model_copy(update={"dp": layout.dp, "tp": layout.tp})
    return config.model_copy(update=sections)


def _alone(widest: RunConfig, tokens: int) -> RunConfig:
    """The configuration with contexts of `tokens`, and forward passes of the trainer that have one of them
    alone: shorter ones that do not fit together are passed apart."""
    changed = with_held(widest, tokens)
    trainer = changed.trainer
    if trainer.microbatch_tokens:
        return changed
    alone = {"microbatch_tokens": max(1, -(-tokens // trainer.cp))}
    return changed.model_copy(update={"trainer": trainer.model_copy(update=alone)})


def as_begun(config: RunConfig) -> RunConfig:
    """The configuration with the contexts that the run begins with, of which it may have longer ones: those
    that it is planned for, as far as a rank of the trainer takes them. A wish stays."""
    if config.rollout.max_context_tokens:
        return config
    trainer, tokens = config.trainer, config.planned_context
    if trainer.microbatch_tokens:
        return with_held(config, min(tokens, trainer.microbatch_tokens * trainer.cp))
    # It packs no more than its longest sequence has, where it would pack more.
    packed = {"microbatch_tokens": min(PASS_TOKENS, config.context_tokens)}
    return with_held(config, tokens).model_copy(update={"trainer": trainer.model_copy(update=packed)})


def _least_kv_tokens(widest: RunConfig, tokens: int, on_gpus: bool) -> int:
    """KV that an engine has to have for contexts of `tokens`: of one of them. The torch engine's cache on a
    GPU has whole contexts in all of its slots."""
    whole = widest.rollout.engine == "torch" and on_gpus
    return tokens * (widest.rollout.max_sequences if whole else 1)


def _paced_tokens(widest: RunConfig) -> float:
    """Tokens that the simulated devices of these layouts hold; infinite where devices are real."""
    if (pace := widest.pace) is None:
        return math.inf
    engines = Parallelism(widest.rollout.engines, widest.rollout.tp)
    layouts = {ROLLOUT: engines, TRAINER: widest.trainer.parallelism}
    return max(1.0, min(pace.held_tokens(stage, layout.replica) for stage, layout in layouts.items()))


def whole_pages(config: RunConfig, spec: ModelSpec, tokens: int, *, on_gpus: bool) -> int:
    """`tokens`, rounded up to what an engine counts its KV by."""
    page = _page_tokens(config, spec, on_gpus)
    return ceil_div(tokens, page) * page


def _page_tokens(config: RunConfig, spec: ModelSpec, on_gpus: bool) -> int:
    """Tokens by which an engine's KV is counted (services.rollout.engines.torch.kv_cache)."""
    if config.rollout.engine != "torch" or on_gpus:
        return 1
    return PAGE_BYTES // math.gcd(PAGE_BYTES, spec.head_dim * ITEM_BYTES[config.rollout_dtype])


def _mapped_tokens(widest: RunConfig, spec: ModelSpec) -> int:
    rollout = widest.rollout
    row_bytes = spec.head_dim * ITEM_BYTES[widest.rollout_dtype]
    token_bytes = spec.layers * 2 * rank_heads(spec, rollout.tp)[1] * row_bytes
    return MAPPED_BYTES // (token_bytes * (rollout.max_sequences + 1))


def _memory_reason(config: RunConfig, plans: list[NodePlan]) -> str:
    """Names the part that takes most where the least is free."""
    plan, number = min(
        ((plan, number) for plan in plans for number in range(plan.gpus or 1)),
        key=lambda place: usable_bytes(config, place[0]) - place[0].device_total(place[1]),
    )
    uses = plan.uses_of(number, plan.fullest_turn(number))
    parts = [(size, use.process, name) for use in uses for name, size in use.part_bytes().items()]
    size, process, name = max(parts)
    where = f"GPU {number}" if plan.gpus else "this machine"
    return f"memory of {where}: most of it for {process}'s {name}, {size / (1 << 30):.1f} GiB"
