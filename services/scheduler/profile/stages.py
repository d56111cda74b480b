"""The measurements of a stage's profile: parallelisms, points, and what bounds a sequence at each. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.models.spec import ModelSpec
from earl.models.tp import legal_parallelisms, legal_tp, rank_heads
from earl.parallelism import Parallelism
from services.scheduler.profile.plan import ProfilePoint

# By default lengths halve, and concurrency falls to a quarter, so often from the run file's largest.
CONTEXTS, CONCURRENCIES = 4, 3
# What is shorter is no sequence to speak of.
SHORTEST = 8


@dataclass(frozen=True, slots=True)
class StagePlan:
    """points: of each parallelism. loads: what is at work at once at each of them, fewer sequences where the
    run file's KV bound lets the others wait; None where its bounds hold not even one."""

    stage: str
    points: dict[Parallelism, tuple[ProfilePoint, ...]]
    loads: dict[Parallelism, dict[ProfilePoint, ProfilePoint | None]]

    def only(self, layouts: Collection[Parallelism]) -> StagePlan:
        """The same points in these layouts alone."""
        return StagePlan(
            self.stage,
            {layout: points for layout, points in self.points.items() if layout in layouts},
            {layout: loads for layout, loads in self.loads.items() if layout in layouts},
        )


def plan_of(
    stage: str,
    config: RunConfig,
    spec: ModelSpec,
    contexts: Sequence[int] = (),
    concurrencies: Sequence[int] = (),
) -> StagePlan:
    """Every parallelism that the stage's devices and the model allow, at every length and concurrency given;
    without any, at those that the run file leads to. Raises ConfigError."""
    lengths = tuple(contexts) or _falling(config.planned_context, 2, CONTEXTS, SHORTEST)
    sequences = tuple(concurrencies) or _falling(largest(stage, config), 4, CONCURRENCIES, 1)
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
    """The parallelisms in which the stage can start on its devices."""
    if stage == "trainer":
        legal = [
            parallelism
            for parallelism in legal_parallelisms(spec, config.trainer.ranks)
            if feeds_every_replica(config, parallelism)
        ]
    else:
        section = config.rollout if stage == "rollout" else config.reference
        dp = config.rollout.engines if stage == "rollout" else config.reference.dp
        devices = dp * section.tp
        legal = [Parallelism(devices // tp, tp) for tp in legal_tp(spec) if devices % tp == 0]
    pace = config.pace
    return legal if pace is None else [layout for layout in legal if pace.has(stage, layout.replica)]


def feeds_every_replica(config: RunConfig, parallelism: Parallelism) -> bool:
    """Returns whether every replica of a trainer gets a sequence of every mini-batch (earl.config.check)."""
    warmup = config.warmup
    least = min(entry.group_trajectories for entry in config.mixture) * config.scheduler.batch_groups
    most = least // config.trainer.minibatches
    if warmup.batches:
        most = min(most, warmup.batch_episodes // warmup.minibatches)
    return parallelism.dp <= most


def largest(stage: str, config: RunConfig) -> int:
    """The concurrency that a run reaches: what the engines hold, or a batch's sequences."""
    if stage == "rollout":
        return config.rollout.engines * config.rollout.max_sequences
    return config.batch_trajectories


def _falling(most: int, by: int, count: int, least: int) -> tuple[int, ...]:
    values = (most // by**power for power in range(count))
    return tuple(sorted(value for value in values if value >= least)) or (max(most, least),)


def held_tokens(
    stage: str, config: RunConfig, spec: ModelSpec | None, parallelism: Parallelism
) -> float | None:
    """Tokens of one sequence that a parallelism of the stage holds; None where nothing bounds them.

    rollout.kv_tokens, which is of an engine of rollout.tp, bounds the bytes of each of its devices;
    trainer.microbatch_tokens, where it is given, is what each of cp ranks takes of a sequence at once. spec:
    None if the model is not known yet, and then nothing bounds rollout. Raises IllegalParallelism.
    """
    if stage == "trainer":
        return config.trainer.microbatch_tokens * parallelism.cp or None
    if stage != "rollout" or not config.rollout.kv_tokens or spec is None:
        return None
    configured, other = (rank_heads(spec, tp)[1] for tp in (config.rollout.tp, parallelism.tp))
    return configured / other * config.rollout.kv_tokens


def _at_work(
    stage: str, config: RunConfig, spec: ModelSpec, parallelism: Parallelism, point: ProfilePoint
) -> ProfilePoint | None:
    """Returns the point with the sequences that run at once there; None if not even one fits."""
    pace = config.pace
    if pace is not None and point.context_tokens > pace.held_tokens(stage, parallelism.replica):
        return None
    held = held_tokens(stage, config, spec, parallelism)
    if held is None:
        return point
    if stage == "trainer":
        return point if point.context_tokens <= held else None
    together = parallelism.dp * int(held // point.context_tokens)
    return ProfilePoint(point.context_tokens, min(point.concurrency, together)) if together else None
