"""What there is to measure of a stage: parallelisms, points, and what their figures depend on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.models.source import cache_directory
from earl.models.spec import ModelSpec
from earl.models.tp import legal_parallelisms, legal_tp, rank_heads
from earl.obs.machine import installed, machine
from earl.parallelism import Parallelism
from services.scheduler.profile.cache import Cache
from services.scheduler.profile.plan import ProfilePoint

# By default lengths halve, and concurrency falls to a quarter, so often from the run file's largest.
CONTEXTS, CONCURRENCIES = 4, 3
# What is shorter is no sequence to speak of.
SHORTEST = 8
_SMI_S = 20.0
# Of the run file, what changes how fast or how large a stage is.
_SETTINGS = {
    "rollout": ("engine", "engine_python", "device", "threads", "dtype"),
    "reference": ("device", "threads", "microbatch_tokens"),
    "trainer": (
        "device", "threads", "dtype", "importance", "activation_checkpointing", "lora_rank", "lora_targets",
        "minibatches", "passes", "microbatch_tokens", "share_prefixes",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StagePlan:
    """points: of each parallelism. loads: what is at work at once at each of them, fewer sequences where the
    run file's KV bound lets the others wait; None where its bounds hold not even one."""

    stage: str
    points: dict[Parallelism, tuple[ProfilePoint, ...]]
    loads: dict[Parallelism, dict[ProfilePoint, ProfilePoint | None]]


def plan_of(
    stage: str,
    config: RunConfig,
    spec: ModelSpec,
    contexts: Sequence[int] = (),
    concurrencies: Sequence[int] = (),
) -> StagePlan:
    """Every parallelism that the stage's devices and the model allow, at every length and concurrency given;
    without any, at those that the run file leads to. Raises ConfigError."""
    lengths = tuple(contexts) or _falling(config.rollout.max_context_tokens, 2, CONTEXTS, SHORTEST)
    sequences = tuple(concurrencies) or _falling(_largest(stage, config), 4, CONCURRENCIES, 1)
    for length in lengths:
        if not SHORTEST <= length <= spec.max_positions:
            raise ConfigError(
                f"--contexts: {length} tokens",
                f"give lengths from {SHORTEST} to the model's {spec.max_positions}",
            )
    for count in sequences:
        if count < 1:
            raise ConfigError(f"--concurrency: {count} sequences", "give numbers of at least 1")
    points = tuple(ProfilePoint(length, count) for length in lengths for count in sequences)
    layouts = parallelisms(stage, config, spec)
    return StagePlan(
        stage,
        dict.fromkeys(layouts, points),
        {
            parallelism: {point: _at_work(stage, config, spec, parallelism, point) for point in points}
            for parallelism in layouts
        },
    )


def parallelisms(stage: str, config: RunConfig, spec: ModelSpec) -> list[Parallelism]:
    """Those that the stage can be started in with its devices."""
    if stage == "trainer":
        return [
            parallelism
            for parallelism in legal_parallelisms(spec, config.trainer.ranks)
            if fed(config, parallelism)
        ]
    section = config.rollout if stage == "rollout" else config.reference
    dp = config.rollout.engines if stage == "rollout" else config.reference.dp
    devices = dp * section.tp
    return [Parallelism(devices // tp, tp) for tp in legal_tp(spec) if devices % tp == 0]


def fed(config: RunConfig, parallelism: Parallelism) -> bool:
    """Whether every replica of a trainer gets a sequence of every mini-batch (earl.config.check)."""
    scheduler, warmup = config.scheduler, config.warmup
    most = scheduler.group_size * scheduler.batch_groups // config.trainer.minibatches
    if warmup.batches:
        most = min(most, warmup.batch_episodes // warmup.minibatches)
    return parallelism.dp <= most


def cache_of(stage: str, config: RunConfig, spec: ModelSpec, kept: Path | None = None) -> Cache:
    """What is known of a stage of a run on this machine. kept: directory of all; None: below EARL's cache."""
    return Cache(kept or cache_directory() / "profiles", stage, facts_of(stage, config, spec))


def facts_of(stage: str, config: RunConfig, spec: ModelSpec) -> dict[str, Any]:
    """Model, hardware and settings that a stage's figures depend on."""
    section = {"rollout": config.rollout, "reference": config.reference, "trainer": config.trainer}[stage]
    settings: dict[str, Any] = {name: getattr(section, name) for name in _SETTINGS[stage]}
    settings["deterministic"] = config.deterministic
    if stage == "rollout" and config.rollout.kv_tokens:
        # What waits for room in the KV cache is not at work.
        settings["kv"] = [config.rollout.kv_tokens, config.rollout.tp]
    if stage == "reference":
        settings["dtype"] = config.trainer.dtype
    if stage == "trainer":
        settings["kl"] = config.trainer.kl_coefficient > 0
    return {
        "model": {**asdict(spec), "dtype": config.model.weight_dtype},
        "hardware": {**machine(), "gpus": _gpus() if section.device != "cpu" else []},
        "settings": settings,
        "earl": installed("earl"),
    }


def _largest(stage: str, config: RunConfig) -> int:
    """The concurrency that a run reaches: what the engines hold, or a batch's sequences."""
    if stage == "rollout":
        return config.rollout.engines * config.rollout.max_sequences
    return config.scheduler.batch_groups * config.scheduler.group_size


def _falling(largest: int, by: int, count: int, least: int) -> tuple[int, ...]:
    values = (largest // by**power for power in range(count))
    return tuple(sorted(value for value in values if value >= least)) or (max(largest, least),)


def _at_work(
    stage: str, config: RunConfig, spec: ModelSpec, parallelism: Parallelism, point: ProfilePoint
) -> ProfilePoint | None:
    """rollout.kv_tokens, which is of an engine of rollout.tp, bounds the bytes of each of its devices;
    trainer.microbatch_tokens what each of cp ranks takes of a sequence at once."""
    if stage == "trainer" and point.context_tokens > config.trainer.microbatch_tokens * parallelism.cp:
        return None
    bound = config.rollout.kv_tokens
    if stage != "rollout" or not bound:
        return point
    held = rank_heads(spec, config.rollout.tp)[1] / rank_heads(spec, parallelism.tp)[1] * bound
    together = parallelism.dp * int(held // point.context_tokens)
    return ProfilePoint(point.context_tokens, min(point.concurrency, together)) if together else None


def _gpus() -> list[str]:
    """Names of the GPUs that the driver's own tool finds."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        done = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, check=False, timeout=_SMI_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []
