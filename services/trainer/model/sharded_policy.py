"""The policy sharded over a mesh of ranks, and where each shard's box lies in the published tensor.

    meta device ─ tp slices ─ fully_shard(block) over dp x cp … fully_shard(root) over all ranks
        ─ allocate, all at once or one by one ─ fill shard by shard

No rank ever holds the whole model: the checkpoint is read box by box. What is trained is kept in
float32 and computed in `dtype`. With adapters (earl.models.lora) the model itself is frozen, in the
dtype that it is published in. A critic is one more parameter, trained and in checkpoints, never
published. Optimizer, checkpoints and published weights work on `Shard`s: this rank's parts of the
parameters, as plain tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import torch._dynamo  # fully_shard imports it: with the rest, before there is anything to wait for
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from earl.config.run import RunConfig
from earl.dispatch.layout.box import Box
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.publish.dtensor import local_box
from earl.fragments.credit import CREDITS, needs_values
from earl.fragments.lookup import load_fragment
from earl.models.lora import LoraSpec, adapt, adapters, initial, merged
from earl.models.module import Decoder, decoder_on_meta
from earl.models.slices import tp_box, tp_shard, whole_shape
from earl.models.spec import ModelSpec
from earl.models.weights import Checkpoint
from services.trainer.model.adapters import AdapterEntry, hash_of
from services.trainer.model.shard_layout import BLOCKS, place_of, shard_layout
from services.trainer.ranks.rank_mesh import RankMesh

# FSDP2 warns of outputs that are views because an in-place change would lose its backward hook:
# nothing here changes the log-probs in place.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")

# The parameter of a critic: no tensor of the published model.
CRITIC = "value_head.weight"


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's part of one parameter: `box` of the published tensor of `shape`.

    layout: of that tensor over the ranks, among which this one is at `place`, row-major.
    """

    name: str
    shape: tuple[int, ...]
    box: Box
    parameter: nn.Parameter
    layout: MeshLayout
    place: int

    @property
    def local(self) -> torch.Tensor:
        """The module's own memory; empty where this rank has no part, on meta before it is allocated."""
        return _local_memory(self.parameter)

    @property
    def gradient(self) -> torch.Tensor | None:
        """The gradient, float32, shaped as `local`, summed over ranks and micro-batches; None without one."""
        grad = self.parameter.grad
        return None if grad is None else _local_memory(grad)

    @property
    def counts(self) -> bool:
        """Returns whether this is the first rank that holds the box: it is counted and written here."""
        coordinates = self.layout.coordinates(self.place)
        held = zip(coordinates, self.layout.placements, strict=True)
        return self.box.size > 0 and all(placement[0] != "replicate" or i == 0 for i, placement in held)


def lora_of(config: RunConfig) -> LoraSpec | None:
    """The adapters that a run file asks for."""
    trainer = config.trainer
    if not trainer.lora_rank:
        return None
    return LoraSpec(trainer.lora_rank, trainer.lora_alpha, tuple(sorted(set(trainer.lora_targets))))


def has_critic(config: RunConfig) -> bool:
    """Returns whether a run's credit needs values. Raises ConfigError for a fragment that cannot be had."""
    return needs_values(load_fragment("trainer.credit", config.trainer.credit, CREDITS))


class ShardedPolicy:
    """A sharded decoder. Call it like the decoder.

    dtype: what it computes in. lora: train adapters of a frozen model that is held in `frozen_dtype`.
    critic: with a value of each token (earl.models.module.ValueHead).
    allocated: False leaves every parameter on the meta device, boxes known, for `allocate`.
    adapter: the entry of adapters that are carried over from another policy.
    shards: what is trained, float32. model_shards: the model's own parameters; the same without lora.
    every_shard: both, each once, in the same order in any parallelism.
    """

    def __init__(
        self,
        spec: ModelSpec,
        mesh: RankMesh,
        dtype: str,
        *,
        lora: LoraSpec | None = None,
        frozen_dtype: str = "float32",
        activation_checkpointing: bool = False,
        allocated: bool = True,
        adapter: AdapterEntry | None = None,
        critic: bool = False,
    ) -> None:
        self.decoder = decoder_on_meta(spec, mesh.tensor, mesh.context)
        if lora is not None:
            self.decoder.to(getattr(torch, frozen_dtype))
            adapt(self.decoder, lora)
        if critic:
            with torch.device("meta"):
                self.decoder.add_critic()
        if activation_checkpointing:
            self.decoder.checkpoint_activations()
        precision = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype), reduce_dtype=torch.float32)
        for block in self.decoder.model.layers:
            # A single rank has nothing to free by resharding, only copies to repeat.
            alone = mesh.blocks.size() == 1
            fully_shard(block, mesh=mesh.blocks, mp_policy=precision, reshard_after_forward=not alone)
            _sum(block, mesh.blocks)
        fully_shard(self.decoder, mesh=mesh.everyone, mp_policy=precision)
        _sum(self.decoder, mesh.everyone)
        self.spec, self.mesh, self.lora = spec, mesh, lora
        # A checkpoint's entry of the adapters; None until the model was read.
        self.adapter = adapter
        shards = tuple(shards_of(self.decoder, mesh))
        by_name = {shard.name: shard for shard in shards}
        self.shards = tuple(shard for shard in shards if shard.parameter.requires_grad)
        self.model_shards = tuple(by_name[name] for name in spec.shapes())
        self.every_shard = tuple({s.name: s for s in (*self.model_shards, *self.shards)}.values())
        # Each weight that has an adapter: its A and its B.
        self._adapters = {weight: (by_name[a], by_name[b]) for weight, a, b in adapters(list(by_name))}
        if allocated:
            self.allocate()

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        mesh: RankMesh,
        config: RunConfig,
        *,
        allocated: bool = True,
        adapter: AdapterEntry | None = None,
    ) -> ShardedPolicy:
        """The policy that a run file asks for."""
        trainer = config.trainer
        return cls(
            spec,
            mesh,
            config.trainer_dtype,
            lora=lora_of(config),
            frozen_dtype=config.model.weight_dtype,
            activation_checkpointing=trainer.checkpoints_activations,
            allocated=allocated,
            adapter=adapter,
            critic=has_critic(config),
        )

    def allocate(self, *only: Shard) -> None:
        """Memory, not filled, for these shards that have none yet, or for all of them."""
        device, parameters = self.mesh.group.device, {id(shard.parameter) for shard in only}

        def real(data: torch.Tensor) -> torch.Tensor:
            chosen = data.is_meta and (not only or id(data) in parameters)
            return torch.empty_like(data, device=device) if chosen else data

        # FSDP2 notices new memory only through its own modules.
        names = {shard.name for shard in only}
        for prefix, module in self._wrapped():
            if not only or any(self._owner(name) == prefix for name in names):
                module._apply(real)  # type: ignore[operator]

    def adopt(self, memory: Mapping[str, torch.Tensor]) -> None:
        """Lets shards that have no memory have this, by name, as their `local`. Nothing is copied.

        For shards that are not padded; the tensors are shaped as `local`, on the ranks' device.
        """
        given = {
            id(shard.parameter): memory[shard.name] for shard in self.every_shard if shard.name in memory
        }

        def shared(data: torch.Tensor) -> torch.Tensor:
            local = given.get(id(data))
            if local is None:
                return data
            layout = cast(DTensor, data)
            return DTensor.from_local(
                local,
                layout.device_mesh,
                layout.placements,
                run_check=False,
                shape=layout.shape,
                stride=layout.stride(),
            )

        # The root's reaches every module.
        self._wrapped()[-1][1]._apply(shared)  # type: ignore[operator]

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        lengths: list[int],
        source: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        shared: list[int] | None = None,
        blocks: Sequence[int] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """(logprobs, entropy), with a critic (.., .., values), each float32 [N], of targets int64 [N]
        predicted from rows `source`.

        tokens, positions: int64 [T], sequences of `lengths` packed end to end without what is `shared`.
        blocks: the numbers of those that are computed; None: all.
        """
        return self.decoder(tokens, positions, lengths, targets, temperature, source, shared, blocks)

    @torch.no_grad()
    def fill(self, directory: Path, seed: int = 0) -> None:
        """Reads this rank's boxes of a transformers checkpoint; adapters start from `seed`, a critic from 0.

        Raises ModelNotFound, UnsupportedModel.
        """
        checkpoint = Checkpoint(directory)
        checkpoint.check(self.spec)
        for shard in self.shards:
            if shard.name == CRITIC:
                shard.local.zero_()
        for shard in self.model_shards:
            if shard.box.size:
                shard.local.copy_(checkpoint.read(shard.name, shard.box))
        if self.lora is None:
            return
        self.adapter = AdapterEntry(self.lora, hash_of(*sorted(directory.glob("*.safetensors"))))
        for shard in self.shards:
            if shard.box.size and shard.name != CRITIC:
                whole = initial(shard.name, shard.shape, self.lora, seed)
                shard.local.view(shard.box.shape).copy_(whole[shard.box.slices()])

    @torch.no_grad()
    def weights(self) -> Iterator[tuple[Shard, torch.Tensor]]:
        """Yields each of model_shards with its values as used, adapters added; shaped as its box.

        One at a time; a collective: every rank must go through all of it.
        """
        for shard in self.model_shards:
            local = shard.local.view(shard.box.shape) if shard.box.size else shard.local
            pair = self._adapters.get(shard.name)
            if pair is not None:
                whole_a = _whole(pair[0].parameter)
                if shard.box.size:
                    # B is sharded by rows as the weight is, A by columns.
                    assert self.lora is not None
                    b = pair[1].local.view(pair[1].box.shape)
                    local = merged(local, whole_a, b, self.lora)
            yield shard, local

    @torch.no_grad()
    def gathered(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields each whole tensor, adapters added, one at a time; a collective like weights()."""
        for shard in self.model_shards:
            whole = self._gathered(shard)
            pair = self._adapters.get(shard.name)
            if pair is not None:
                assert self.lora is not None
                whole = merged(whole, self._gathered(pair[0]), self._gathered(pair[1]), self.lora)
            yield shard.name, whole

    def _gathered(self, shard: Shard) -> torch.Tensor:
        """A tensor from all ranks' shards."""
        tp_slice, tensor = _whole(shard.parameter), self.mesh.tensor
        if tp_shard(shard.name, self.spec, tensor.size) is None:
            return tp_slice
        parts = [torch.empty_like(tp_slice) for _ in range(tensor.size)]
        dist.all_gather(parts, tp_slice.contiguous(), group=tensor.group)
        whole = tp_slice.new_empty(shard.shape)
        for rank, part in enumerate(parts):
            whole[tp_box(shard.name, shard.shape, self.spec, rank, tensor.size).slices()] = part
        return whole

    def clear_gradients(self) -> None:
        for parameter in self.decoder.parameters():
            parameter.grad = None

    def reshard(self) -> None:
        """Frees what a forward pass without a backward pass left gathered: it would miss the next update."""
        for _, module in self._wrapped():
            module.reshard()

    def recover(self) -> bool:
        """Makes the policy ready for another pass after one that failed in the middle, without gradients.

        False if this torch cannot: FSDP2 does from 2.13 on.
        """
        root = self._wrapped()[-1][1]
        reset = getattr(root, "reset_iter_state", None)
        if reset is None:
            return False
        # First those of what is gathered now, which the reset would leave there; then those of the shards.
        self.clear_gradients()
        reset()
        self.clear_gradients()
        return True

    def _wrapped(self) -> list[tuple[str, FSDPModule]]:
        """Blocks first, the root last, with their names."""
        wrapped = [(n, m) for n, m in self.decoder.named_modules() if isinstance(m, FSDPModule)]
        return wrapped[1:] + wrapped[:1]

    @staticmethod
    def _owner(name: str) -> str:
        """The name of the wrapped module that has this parameter."""
        return ".".join(name.split(".")[:3]) if name.startswith(BLOCKS) else ""


def _sum(module: nn.Module, mesh: DeviceMesh) -> None:
    """Losses are weighted over the global batch: gradients are sums over the mesh, never averages."""
    if mesh.size() > 1:
        wrapped = cast(FSDPModule, module)
        wrapped.set_force_sum_reduction_for_comms(True)
        wrapped.set_gradient_divide_factor(1.0)


def _local_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A DTensor's memory on this rank, past its dispatch, which costs tens of microseconds a call."""
    return cast(DTensor, tensor)._local_tensor


def _whole(parameter: nn.Parameter) -> torch.Tensor:
    return cast(DTensor, parameter.detach()).full_tensor()


def shards_of(decoder: Decoder, mesh: RankMesh) -> Iterator[Shard]:
    """Yields this rank's shard of each parameter of a decoder whose tp slices FSDP2 has sharded."""
    spec, rank, ranks, tp = decoder.spec, mesh.group.rank, mesh.group.size, mesh.tensor.size
    for name, parameter in decoder.named_parameters():
        local = cast(DTensor, parameter.detach())
        shape = whole_shape(name, tuple(local.shape), spec, tp)
        slice_ = tp_box(name, shape, spec, mesh.tensor.rank, tp)
        box = local_box(local).relative_to([-start for start in slice_.start])
        layout = shard_layout(name, shape, spec, tp, ranks)
        yield Shard(name, shape, box, parameter, layout, place_of(name, rank, tp, ranks))
