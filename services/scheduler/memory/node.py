"""Memory that a run takes of one machine's devices, before anything starts. Pure.

    placement, sizes of the model ─► bytes of each process on each of its devices, by part ─► what is too much

Without GPUs the machine's memory is one device, which has every rank of every process. Where rollout and
trainer take turns, a device holds one of them at work and what the other keeps: the larger of both counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from earl.config.devices import shown_devices
from earl.config.run import RunConfig
from earl.models.spec import ModelSpec
from earl.parallelism import Parallelism
from earl.stack.placement import Placement
from services.scheduler.memory.model import Device, predict, worst_load
from services.scheduler.memory.parts import MemoryParts
from services.scheduler.memory.stage_spec import spec_of_stage
from services.scheduler.memory.trainer import SLOTS

GIB = 1 << 30
# The CUDA context and libraries of one process on one GPU: assumed, not measured.
CONTEXT_BYTES = 640 << 20

# Part of the machine's memory for stages on its processor, where the run leaves it open: the rest is for
# arenas, environments and what else runs here.
HOST_SHARE = 0.5

# What makes a part smaller.
_REMEDIES = {
    "kv": "set rollout.kv_tokens, or give lower rollout.max_sequences or rollout.max_context_tokens",
    "activations": "lower trainer.microbatch_tokens, or raise trainer.tp or cp",
    "optimizer": "raise trainer.ranks, or train adapters with trainer.lora_rank",
    "gradients": "raise trainer.ranks, or train adapters with trainer.lora_rank",
    "weights": 'raise the stage\'s tp or ranks, or set model.dtype = "bfloat16"',
    "staging": 'set model.dtype = "bfloat16"',
}
_CHECKPOINTING = "set trainer.activation_checkpointing = true"


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Memory that a process takes of each of its devices.

    numbers: GPUs; empty: the machine's own memory. ranks: how many on each. parts: of one rank. asleep: of
    one rank while it is another stage's turn; None if the process takes no turns.
    """

    process: str
    numbers: tuple[int, ...]
    ranks: int
    parts: MemoryParts
    asleep: MemoryParts | None = None

    def during(self, turn: str) -> DeviceUse:
        """The use while it is a stage's turn; "" where there are no turns."""
        if not turn or self.asleep is None or self.process.startswith(turn):
            return self
        return replace(self, parts=self.asleep)

    @property
    def total_bytes(self) -> int:
        return self.ranks * self.parts.total_bytes

    def part_bytes(self) -> dict[str, int]:
        """Bytes on each device, by part."""
        return {name: self.ranks * size for name, size in self.parts.parts().items()}


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The uses of all devices of a machine.

    gpus: how many it has; device_bytes: of each, or, without GPUs, of the machine. slots_bytes: memory of the
    machine that a run with GPUs takes besides, for published versions and for those that engines read.
    checkpointed: the trainer computes activations again.
    """

    gpus: int
    device_bytes: int
    uses: tuple[DeviceUse, ...]
    slots_bytes: int = 0
    checkpointed: bool = False
    # The stages that take turns.
    turns: tuple[str, ...] = ("",)

    def uses_of(self, number: int, turn: str) -> list[DeviceUse]:
        """The uses of GPU `number`, or without GPUs of the machine, while it is a stage's turn."""
        return [use.during(turn) for use in self.uses if not self.gpus or number in use.numbers]

    def turn_total(self, number: int, turn: str) -> int:
        """Bytes there while it is a stage's turn."""
        return sum(use.total_bytes for use in self.uses_of(number, turn))

    def fullest_turn(self, number: int) -> str:
        """The stage in whose turn most is there."""
        return max(self.turns, key=lambda turn: self.turn_total(number, turn))

    def device_total(self, number: int) -> int:
        """Bytes on GPU `number`; without GPUs, on the machine. Where stages take turns, in the fullest."""
        return self.turn_total(number, self.fullest_turn(number))

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yields what does not fit, and what to do about its largest part; alike GPUs are named together."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for number in range(self.gpus or 1):
            if self.device_total(number) > self.device_bytes:
                here = tuple(use.process for use in self.uses if not self.gpus or number in use.numbers)
                alike.setdefault(here, []).append(number)
        for numbers in alike.values():
            uses = self.uses_of(numbers[0], self.fullest_turn(numbers[0]))
            most = max(
                ((size, name, use) for use in uses for name, size in use.part_bytes().items()),
                key=lambda part: part[0],
            )
            taken = ", ".join(f"{use.process} {use.total_bytes / GIB:.1f}" for use in uses)
            where = f"GPU {shown_devices(tuple(numbers))}" if self.gpus else "this machine"
            text = (
                f"{where} would hold {self.device_total(numbers[0]) / GIB:.1f} of "
                f"{self.device_bytes / GIB:.1f} GiB ({taken}): the largest part is {most[2].process}'s "
                f"{most[1]}, {most[0] / GIB:.1f} GiB"
            )
            if most[1] == "activations" and most[2].process == "trainer" and not self.checkpointed:
                yield text, _CHECKPOINTING
            else:
                yield text, _REMEDIES.get(most[1], "use more or larger devices")


def node_plan(config: RunConfig, spec: ModelSpec, placement: Placement, device_bytes: int) -> NodePlan:
    """The memory that each process of a run takes, by its devices.

    placement: of the run's processes. device_bytes: of each GPU, or, without GPUs, of the machine. Raises
    IllegalParallelism.
    """
    if not placement.gpus:
        return host_plan(config, spec, placement, device_bytes)
    checkpointed = config.trainer.checkpoints_activations
    turns = ("rollout", "trainer") if config.alternates else ("",)
    uses = [
        _use(config, spec, process, placement.on_gpus, numbers)
        for process, numbers in placement.devices.items()
    ]
    model_bytes = spec.size_bytes(config.model.weight_dtype)
    engines = config.rollout.workers * config.rollout.engines
    slots_bytes = (SLOTS + engines) * model_bytes
    slots_bytes += int(SLOTS * model_bytes * config.data_plane.changes_fraction)
    on_gpus = tuple(use for use in uses if use.numbers)
    return NodePlan(placement.gpus, device_bytes, on_gpus, slots_bytes, checkpointed, turns)


def kv_tokens_within(
    config: RunConfig,
    spec: ModelSpec,
    placement: Placement,
    device_bytes: int,
    least: int = 0,
    longest: int = 0,
) -> int:
    """The tokens of KV of each engine, where rollout.kv_tokens leaves them open.

    As many as fit into the run's part of the devices beside everything else that is on them, at most those of
    max_sequences whole contexts of `longest` tokens (0: of the run's), at least `least` (0: one context).
    Engines on the processor commit what they write: with rollout.max_context_tokens theirs is 0, as the run
    file has it. device_bytes: of what the engines compute on. Raises IllegalParallelism.
    """
    rollout = config.rollout
    on_gpus = "rollout-0" in placement.on_gpus
    if rollout.kv_tokens or not (on_gpus or (device_bytes and not rollout.max_context_tokens)):
        return rollout.kv_tokens
    least = least or config.context_tokens
    smallest = config.model_copy(update={"rollout": rollout.model_copy(update={"kv_tokens": least})})
    make = node_plan if on_gpus else host_plan
    plan = make(smallest, spec, placement, device_bytes)
    most = rollout.max_sequences * max(least, longest or config.context_tokens)
    for use in plan.uses:
        if not use.process.startswith("rollout-"):
            continue
        token_bytes = use.parts.kv / least
        for number in use.numbers or (0,):
            engines = sum(other.ranks for other in plan.uses_of(number, "") if other.parts.kv)
            free = usable_bytes(config, plan) - plan.turn_total(number, plan.turns[0])
            most = min(most, least + int(max(0.0, free) / (engines * token_bytes)))
    return max(least, most)


def usable_bytes(config: RunConfig, plan: NodePlan) -> float:
    """Bytes of each device that a run may take with what it leaves open: of a GPU, or of the machine."""
    return (config.rollout.memory_fraction if plan.gpus else HOST_SHARE) * plan.device_bytes


def host_plan(config: RunConfig, spec: ModelSpec, placement: Placement, host_bytes: int) -> NodePlan:
    """The memory of the machine that the processes take which compute on its processor. Raises as
    node_plan."""
    uses = tuple(
        _use(config, spec, process, frozenset(), numbers)
        for process, numbers in placement.devices.items()
        if process not in placement.on_gpus
    )
    turns = ("rollout", "trainer") if config.alternates else ("",)
    return NodePlan(0, host_bytes, uses, checkpointed=config.trainer.checkpoints_activations, turns=turns)


def _use(
    config: RunConfig, spec: ModelSpec, process: str, on_gpus: frozenset[str], numbers: tuple[int, ...]
) -> DeviceUse:
    kind: Device = "cuda" if process in on_gpus else "cpu"
    stage = "rollout" if process.startswith("rollout-") else process
    rollout = config.rollout
    ranks = len(numbers)
    match stage:
        case "rollout":
            parallelism = Parallelism(rollout.engines, rollout.tp)
            # A frozen opponent has engines of its own on the same devices.
            ranks *= 2 if config.frozen is not None else 1
        case "trainer":
            parallelism = config.trainer.parallelism
        case _:
            frozen = config.frozen_stage(stage)
            parallelism = Parallelism(frozen.dp, frozen.tp)
    base_bytes = CONTEXT_BYTES if kind == "cuda" else 0
    load = worst_load(config, stage, parallelism)
    spec = spec_of_stage(stage, config, spec)
    parts = predict(stage, config, spec, parallelism, *load, device=kind, base_bytes=base_bytes)
    asleep = _asleep(stage, config, parts, kind) if config.alternates else None
    if kind == "cpu":
        return DeviceUse(process, (), ranks, parts, asleep)
    distinct = tuple(dict.fromkeys(numbers))
    return DeviceUse(process, distinct, -(-ranks // len(distinct)), parts, asleep)


def _asleep(stage: str, config: RunConfig, parts: MemoryParts, device: Device) -> MemoryParts | None:
    """The memory that a rank keeps while it is another stage's turn; None if its stage takes no turns."""
    if stage not in ("rollout", "trainer"):
        return None
    kept = MemoryParts("asleep", base=parts.base)
    if stage == "rollout" or device == "cuda":
        return kept
    # Published versions stay readable; the state stays where it is, unless it has a directory.
    kept = replace(kept, staging=parts.staging)
    if config.trainer.offload_dir:
        return kept
    return replace(kept, weights=parts.weights, optimizer=parts.optimizer)
