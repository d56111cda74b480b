"""Keys of a run file that follow its devices' memory, where the run file leaves them open. Pure."""

from __future__ import annotations

from earl.config.run import RunConfig
from earl.models.spec import ModelSpec
from earl.stack.placement import Placement
from services.scheduler.memory.node import kv_tokens_within, node_plan
from services.scheduler.profiler.held_context import (
    HeldContext,
    as_begun,
    held_by_division,
    held_by_kv,
    held_kv_tokens,
    most_kv_tokens,
    whole_pages,
    with_held,
)


def within_devices(
    config: RunConfig, spec: ModelSpec, placement: Placement, device_bytes: int, host_bytes: int = 0
) -> tuple[RunConfig, HeldContext | None]:
    """The configuration with activation checkpointing, the longest context and the KV of engines decided; and
    what decided that context, None where the run file does.

    device_bytes: of each GPU; host_bytes: of the machine, 0 if they are unknown. Checkpointing is decided
    first, at the context that the run is planned for, beside the smallest KV that engines can have: what it
    leaves is theirs. Raises IllegalParallelism.
    """
    is_open = not (config.rollout.max_context_tokens or config.rollout.held_context_tokens)
    if config.trainer.activation_checkpointing == "auto":
        planned = with_held(config, with_held(config, spec.max_positions).planned_context)
        config = _checkpointed(config, planned if is_open else config, spec, placement, device_bytes)
    on_gpus = "rollout-0" in placement.on_gpus
    engines_bytes = device_bytes if on_gpus else host_bytes
    if not is_open:
        least = held_kv_tokens(config, spec, config.context_tokens, on_gpus=on_gpus)
        return _with_kv(config, kv_tokens_within(config, spec, placement, engines_bytes, least)), None
    divided, held = held_by_division(config, spec, placement, device_bytes, host_bytes)
    # KV is what fits beside everything else in the layout that the run begins with, whose weights are split
    # least, at the contexts that it is planned for. What holds most has the same bytes of it on each device.
    planned = as_begun(with_held(config, held.tokens))
    least = whole_pages(planned, spec, planned.context_tokens, on_gpus=on_gpus)
    kv_tokens = kv_tokens_within(planned, spec, placement, engines_bytes, least, held.tokens)
    if not config.rollout.kv_tokens and kv_tokens:
        most = most_kv_tokens(divided.config, spec, divided.placement, engines_bytes, held.tokens)
        kv_tokens = max(least, min(kv_tokens, most))
    config = _with_kv(config, kv_tokens)
    held = held_by_kv(_with_kv(divided.config, kv_tokens), spec, held, on_gpus=on_gpus)
    return with_held(config, held.tokens), held


def _with_kv(config: RunConfig, kv_tokens: int) -> RunConfig:
    return config.model_copy(update={"rollout": config.rollout.model_copy(update={"kv_tokens": kv_tokens})})


def _checkpointed(
    config: RunConfig, planned: RunConfig, spec: ModelSpec, placement: Placement, device_bytes: int
) -> RunConfig:
    """`config` with checkpointing where the trainer of `planned` does not fit without."""
    rollout, trainer = planned.rollout, config.trainer
    kv_tokens = rollout.kv_tokens or planned.context_tokens
    least = rollout.model_copy(update={"kv_tokens": kv_tokens})
    plan = node_plan(planned.model_copy(update={"rollout": least}), spec, placement, device_bytes)
    fits = plan.gpus == 0 or all(
        plan.device_total(number) <= device_bytes
        for use in plan.uses
        if use.process == "trainer"
        for number in use.numbers
    )
    trainer = trainer.model_copy(update={"activation_checkpointing": not fits})
    return config.model_copy(update={"trainer": trainer})
