"""The trainer's part of a switch: parameters and moments in another parallelism, and what it publishes.

What was published stays readable as it was; progress and the count of updates are carried over.
"""

from __future__ import annotations

import numpy as np
import torch

from earl.parallelism import Parallelism
from services.trainer.model.sharded_policy import Shard, ShardedPolicy
from services.trainer.publish.weight_slots import SlotLayout, WeightSlots
from services.trainer.ranks.rank_mesh import RankMesh
from services.trainer.reshard.moving_tensor import MovingTensor, TensorMemory
from services.trainer.reshard.reshard import moving_tensors
from services.trainer.reshard.switch import ParallelismChange, canary_tokens
from services.trainer.step.batch import Columns
from services.trainer.step.plan import ReplicaSequence
from services.trainer.step.step import Stepper


class TrainerChange(ParallelismChange):
    """The change of one rank's stepper. stepper: the one to train with, the old or the new."""

    def __init__(self, stepper: Stepper, slots: WeightSlots) -> None:
        super().__init__(stepper.group, stepper.mesh.parallelism)
        self.stepper = stepper
        self._slots = slots
        self._mesh: RankMesh | None = None
        self._new: Stepper | None = None
        self._reserved: SlotLayout | None = None

    def join(self, parallelism: Parallelism) -> None:
        self._mesh = RankMesh(self.group, parallelism, self.stepper.policy.spec)

    def prepare(self) -> list[MovingTensor]:
        assert self._mesh is not None
        old = self.stepper
        spec, adapter = old.policy.spec, old.policy.adapter
        policy = ShardedPolicy.of(spec, self._mesh, old.config, allocated=False, adapter=adapter)
        self._new = Stepper(policy, old.config, updates=old.optimizer.updates)
        old.policy.clear_gradients()
        return moving_tensors(_moves(old, self._new), self.group)

    def arena_bytes(self) -> int:
        return self._slots.more_bytes(self._other.policy)

    def reserve(self) -> None:
        self._reserved = self._slots.reserve(self._other.policy)

    def canaries(self, *, new: bool) -> np.ndarray:
        return canary_logprobs(self._other if new else self.stepper)

    def reshard(self) -> None:
        self._other.policy.reshard()

    def keep(self) -> None:
        assert self._reserved is not None
        self._slots.adopt(self._reserved)
        self.stepper.mesh.close()
        self.stepper = self._other

    def drop(self) -> None:
        if self._reserved is not None:
            self._slots.discard(self._reserved)
        self._other.mesh.close()

    @property
    def _other(self) -> Stepper:
        assert self._new is not None
        return self._new


def _moves(old: Stepper, new: Stepper) -> list[tuple[tuple[int, ...], TensorMemory, TensorMemory]]:
    """Returns the tensors to move: every parameter, followed by its moments if it is trained."""
    moves = []
    for shard, target in zip(_all(old.policy), _all(new.policy), strict=True):
        item_bytes = shard.parameter.element_size()
        before = TensorMemory(lambda shard=shard: shard.local, shard.box, item_bytes)
        after = TensorMemory(
            lambda target=target: target.local,
            target.box,
            item_bytes,
            lambda target=target: new.policy.allocate(target),
        )
        moves.append((shard.shape, before, after))
        if shard.parameter.requires_grad:
            moves += [(shard.shape, _moment(old, shard, k), _moment(new, target, k)) for k in (0, 1)]
    return moves


def _moment(stepper: Stepper, shard: Shard, which: int) -> TensorMemory:
    pair = stepper.optimizer.moments.get(shard.name)
    if pair is None:
        nothing = torch.zeros(0)
        return TensorMemory(lambda: nothing, shard.box, 4)

    def make() -> None:
        pair[which] = torch.empty_like(pair[which], device=stepper.group.device)

    return TensorMemory(lambda: pair[which], shard.box, 4, make if pair[which].is_meta else None)


def _all(policy: ShardedPolicy) -> list[Shard]:
    """The shards of the model and of its adapters, each once, in the same order in any parallelism."""
    return list({shard.name: shard for shard in (*policy.model_shards, *policy.shards)}.values())


def canary_logprobs(stepper: Stepper) -> np.ndarray:
    """Log-probs of the canaries, float32[tokens]; every replica computes them all. A collective."""
    tokens = canary_tokens(stepper.policy.spec.vocab)
    columns = Columns()
    count, length = tokens.shape
    columns.take([ReplicaSequence(n, 1, f"canary/{n}", 0.0, length, position=n) for n in range(count)])
    sampled = columns.sampled
    sampled["tokens"][:] = tokens.ravel()
    sampled["loss_mask"][:] = np.broadcast_to(np.arange(tokens.shape[1]) > 0, tokens.shape).ravel()
    sampled["logprobs"][:] = 0.0
    return stepper.logprobs(columns, 1.0)
