"""Predicts a stage's use of a device's memory, before it is tried. Pure.

The run file and the model say how a stage computes; the parallelism, the context and the concurrency of the
whole pool say how much of it one rank does. rollout.py, trainer.py and reference.py know the terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Literal

from earl.config.run import RunConfig
from earl.config.trainer import TrainerConfig
from earl.errors import ConfigError
from earl.models.spec import ModelSpec
from earl.models.tp import rank_heads
from earl.parallelism import REFERENCE, REWARD_MODEL, TEACHER, Parallelism
from services.scheduler.memory.numbers import ModelNumbers
from services.scheduler.memory.parts import ITEM_BYTES, MemoryParts, MicrobatchRows, ceil_div
from services.scheduler.memory.reference import ReferenceNumbers, reference_memory, score_memory
from services.scheduler.memory.rollout import RolloutNumbers, rollout_memory
from services.scheduler.memory.trainer import LoraShape, TrainerNumbers, trainer_memory

Device = Literal["cpu", "cuda"]
# services.trainer.step.prefix_packing.SHORTEST_SHARED.
SHORTEST_SHARED = 8


@dataclass(frozen=True, slots=True)
class MemoryLoad:
    """The load of all devices of a stage together.

    context_tokens: of the longest sequence; concurrency: sequences of the whole pool (rollout) or of a batch.
    shared_tokens: first tokens that sequences of a micro-batch have in common. trained_fraction: of their
    tokens, those that were sampled. packs_bfloat16: an engine on the processor keeps matrices in bfloat16 a
    second time, in oneDNN's layout, as it does those in float32.
    """

    context_tokens: int
    concurrency: int
    shared_tokens: int = 0
    trained_fraction: float = 1.0
    packs_bfloat16: bool = True


def predict(
    stage: str,
    config: RunConfig,
    spec: ModelSpec,
    parallelism: Parallelism,
    context_tokens: float,
    concurrency: float,
    *,
    device: Device | None = None,
    shared_tokens: int = 0,
    trained_fraction: float = 1.0,
    packs_bfloat16: bool = True,
    base_bytes: int = 0,
) -> MemoryParts:
    """The memory of the rank of `stage` that takes most.

    spec: of the stage's model: spec_of_stage. concurrency: sequences of the whole pool; of other stages, of a
    batch. device: None: what
    the run file says, "cpu" where it says "auto". shared_tokens, trained_fraction, packs_bfloat16: as in
    MemoryLoad; unknown, they are such that more is predicted. base_bytes: of a process before it has a model,
    as it was measured. Raises ConfigError (no such stage, nothing to do), IllegalParallelism.
    """
    make = _STAGES.get(stage)
    if make is None:
        raise ConfigError(f"stage is {stage!r}", f"it is one of {', '.join(_STAGES)}")
    if context_tokens <= 0 or concurrency <= 0:
        raise ConfigError(
            f"{context_tokens} tokens at a concurrency of {concurrency}", "give numbers above 0"
        )
    tokens, sequences = math.ceil(context_tokens), math.ceil(concurrency)
    load = MemoryLoad(tokens, sequences, shared_tokens, trained_fraction, packs_bfloat16)
    configured = getattr(config, stage).device
    memory = make(config, spec, parallelism, load, device or ("cuda" if configured == "cuda" else "cpu"))
    return memory.with_base(base_bytes)


def ranks_here(config: RunConfig) -> int:
    """Processes of a run with a model in them, all on one machine: what its memory is divided by."""
    rollout = config.rollout
    engines = rollout.workers * rollout.engines * rollout.tp
    # A frozen opponent has as many of its own.
    ranks = engines * (2 if config.frozen is not None else 1) + config.trainer.ranks
    return ranks + sum(stage.dp * stage.tp for stage in config.frozen_models.values())


def worst_load(config: RunConfig, stage: str, parallelism: Parallelism) -> tuple[int, int]:
    """(context in tokens, concurrency) at which a stage takes most memory.

    parallelism: of the stage, or, of rollout, of one worker, whose sequences these are then.
    """
    if stage == "rollout":
        return config.context_tokens, parallelism.dp * config.rollout.max_sequences
    trajectories = config.batch_trajectories
    if stage == "trainer" and config.warmup.batches:
        trajectories = max(trajectories, config.warmup_trajectories)
    return config.longest_sequence, trajectories


def _rollout(
    config: RunConfig, spec: ModelSpec, parallelism: Parallelism, load: MemoryLoad, device: Device
) -> MemoryParts:
    rollout = config.rollout
    context = max(config.context_tokens, load.context_tokens)
    model = ModelNumbers.of(spec, parallelism.tp, parallelism.pp, fused=True)
    # Whatever the tp, a device has as many sequences and bytes of KV (services.rollout.pool.devices).
    slots = ceil_div(rollout.max_sequences * parallelism.tp, rollout.tp)
    kv_tokens = rollout.kv_tokens
    if parallelism.tp != rollout.tp:
        kv_tokens = kv_tokens * rank_heads(spec, rollout.tp)[1] // model.kv_heads
    how = RolloutNumbers(
        device=device,
        native=rollout.engine == "torch",
        packs=load.packs_bfloat16 or config.rollout_dtype == "float32",
        tp=parallelism.tp,
        item_bytes=ITEM_BYTES[config.rollout_dtype],
        slots=slots,
        context=context,
        kv_tokens=kv_tokens,
        # What is beyond an engine's slots waits.
        sequences=min(ceil_div(load.concurrency, parallelism.dp), slots),
        length=load.context_tokens,
        drafts=bool(rollout.drafts),
        sorts=bool(config.evaluation.filters.active.keys() & {"top_k", "top_p"}),
    )
    return rollout_memory(model, how)


def _micro_batch(
    load: MemoryLoad, sequences: int, capacity: int, share: bool, parallelism: Parallelism
) -> MicrobatchRows:
    """The fullest of services.trainer.step.prefix_packing.bins: full, if there are tokens enough. A
    sequence is split by context parallelism only; several are moved for attention, as if of unlike length
    (packing.py)."""
    context = load.context_tokens
    padded = max(context, min(capacity, sequences * context))
    rows = padded
    if share and load.shared_tokens >= SHORTEST_SHARED:
        rows -= load.shared_tokens * (padded // context - 1)
    trained = min(rows, math.ceil(load.trained_fraction * padded))
    return MicrobatchRows(
        rows=ceil_div(rows, parallelism.cp),
        trained_rows=ceil_div(trained, parallelism.cp),
        padded=ceil_div(padded, parallelism.cp),
        moved=sequences > 1,
    )


def _trainer(
    config: RunConfig, spec: ModelSpec, parallelism: Parallelism, load: MemoryLoad, device: Device
) -> MemoryParts:
    trainer = config.trainer
    model = ModelNumbers.of(spec, parallelism.tp, parallelism.pp)
    sequences = ceil_div(ceil_div(load.concurrency, parallelism.dp), trainer.minibatches)
    batch = _micro_batch(
        load, sequences, trainer.pass_tokens * parallelism.cp, trainer.share_prefixes, parallelism
    )
    how = TrainerNumbers(
        device=device,
        # Ranks of one sequence (cp) share parameters as those of different ones do.
        dp=parallelism.dp * parallelism.cp,
        ranks=parallelism.dp * parallelism.cp * parallelism.tp,
        cp=parallelism.cp,
        item_bytes=ITEM_BYTES[config.trainer_dtype],
        model_bytes=ITEM_BYTES[config.model.weight_dtype],
        # Each of tp ranks puts its part of them through the lm_head.
        **asdict(replace(batch, trained_rows=ceil_div(batch.trained_rows, parallelism.tp))),
        accumulates=sequences * load.context_tokens > batch.padded * parallelism.cp,
        checkpointed=trainer.checkpoints_activations,
        entropy=trainer.entropy_coefficient > 0,
        lora=_lora(model, trainer),
        changes_fraction=config.data_plane.changes_fraction,
    )
    return trainer_memory(model, how)


def _lora(model: ModelNumbers, trainer: TrainerConfig) -> LoraShape | None:
    """Shapes as earl.models.lora.LoraColumn and LoraRow make them."""
    if not trainer.lora_rank:
        return None
    rank, hidden, query, key, inner = (
        trainer.lora_rank, model.hidden, model.query, model.key, model.intermediate,
    )  # fmt: skip
    ends = {
        "q_proj": (hidden, query), "k_proj": (hidden, key), "v_proj": (hidden, key),
        "o_proj": (query, hidden), "gate_proj": (hidden, inner), "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }  # fmt: skip
    targets = sorted(set(trainer.lora_targets))
    shapes = (shape for name in targets for shape in ((rank, ends[name][0]), (ends[name][1], rank)))
    return LoraShape(rank, len(targets), tuple(shapes))


def _frozen(
    role: str, config: RunConfig, spec: ModelSpec, parallelism: Parallelism, load: MemoryLoad, device: Device
) -> MemoryParts:
    stage = config.frozen_stage(role)
    sequences = ceil_div(load.concurrency, parallelism.dp)
    # Deterministic stages compute one sequence at a time.
    capacity = 0 if config.exact_kernels else stage.microbatch_tokens
    batch = _micro_batch(load, sequences, capacity, config.trainer.share_prefixes, parallelism)
    if not config.exact_kernels:
        # Each of tp ranks takes its slice of the positions (ReferencePolicy).
        batch = replace(batch, trained_rows=ceil_div(batch.trained_rows, parallelism.tp))
    how = ReferenceNumbers(device=device, item_bytes=ITEM_BYTES[config.trainer_dtype], **asdict(batch))
    numbers = ModelNumbers.of(spec, parallelism.tp, parallelism.pp)
    return score_memory(numbers, how) if role == REWARD_MODEL else reference_memory(numbers, how)


_STAGES: dict[str, Callable[[RunConfig, ModelSpec, Parallelism, MemoryLoad, Device], MemoryParts]] = {
    "rollout": _rollout,
    "trainer": _trainer,
    REFERENCE: partial(_frozen, REFERENCE),
    TEACHER: partial(_frozen, TEACHER),
    REWARD_MODEL: partial(_frozen, REWARD_MODEL),
}
