"""Keys of a run file that follow its devices' memory, where the run file leaves them open. Pure."""

from __future__ import annotations

from earl.config.run import RunConfig
from earl.models.spec import ModelSpec
from earl.stack.placement import Placement
from services.scheduler.memory.node import kv_tokens_within, node_plan


def within_devices(config: RunConfig, spec: ModelSpec, placement: Placement, device_bytes: int) -> RunConfig:
    """The configuration with activation checkpointing and the KV of engines decided.

    device_bytes: of each GPU. Checkpointing is decided first, beside the smallest KV that engines can have:
    what it leaves is theirs. Raises IllegalParallelism.
    """
    trainer, rollout = config.trainer, config.rollout
    if trainer.activation_checkpointing == "auto":
        least = rollout.model_copy(update={"kv_tokens": rollout.kv_tokens or rollout.max_context_tokens})
        plan = node_plan(config.model_copy(update={"rollout": least}), spec, placement, device_bytes)
        fits = plan.gpus == 0 or all(
            plan.device_total(number) <= device_bytes
            for use in plan.uses
            if use.process == "trainer"
            for number in use.numbers
        )
        trainer = trainer.model_copy(update={"activation_checkpointing": not fits})
        config = config.model_copy(update={"trainer": trainer})
    kv_tokens = kv_tokens_within(config, spec, placement, device_bytes)
    return config.model_copy(update={"rollout": rollout.model_copy(update={"kv_tokens": kv_tokens})})
