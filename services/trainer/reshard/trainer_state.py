"""The trainer's part of a switch: parameters and moments in another parallelism, and what it publishes.

What was published stays readable as it was; progress and the count of updates are carried over.
"""

from __future__ import annotations

import numpy as np
import torch

from earl.parallelism import Parallelism
from services.trainer.model.sharded_policy import Shard, ShardedPolicy
from services.trainer.publish.weight_slots import WeightSlots
from services.trainer.ranks.rank_mesh import RankMesh
from services.trainer.reshard.moving_tensor import MovingTensor, TensorMemory
from services.trainer.reshard.reshard import TensorMove, moving_tensors
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

    def join(self, parallelism: Parallelism) -> None:
        self._mesh = RankMesh(self.group, parallelism, self.stepper.policy.spec)

    def prepare(self) -> list[MovingTensor]:
        assert self._mesh is not None
        old = self.stepper
        spec, adapter = old.policy.spec, old.policy.adapter
        policy = ShardedPolicy.of(spec, self._mesh, old.config, allocated=False, adapter=adapter)
        self._new = Stepper(policy, old.config, updates=old.optimizer.updates)
        old.policy.clear_gradients()
        _share(old, self._new)
        return moving_tensors(_moves(old, self._new), self.group)

    def canaries(self, *, new: bool) -> np.ndarray:
        return canary_logprobs(self._other if new else self.stepper)

    def reshard(self) -> None:
        self._other.policy.reshard()

    def keep(self) -> None:
        self._slots.adopt(self._other.policy)
        self.stepper.mesh.close()
        self.stepper = self._other

    def drop(self) -> None:
        self._other.mesh.close()

    @property
    def _other(self) -> Stepper:
        assert self._new is not None
        return self._new


def _share(old: Stepper, new: Stepper) -> None:
    """Lets what is the same box on this rank be the same memory: parameters, and their moments."""
    pairs = zip(old.policy.every_shard, new.policy.every_shard, strict=True)
    same = [shard for shard, target in pairs if shard.box == target.box and _may_share(shard, target)]
    new.policy.adopt({shard.name: shard.local for shard in same})
    for name in {shard.name for shard in same} & new.optimizer.moments.keys():
        new.optimizer.moments[name] = list(old.optimizer.moments[name])


def _may_share(shard: Shard, target: Shard) -> bool:
    """Returns whether neither is padded: FSDP2 would copy a shard whose rows it has to fill up."""
    payload_bytes = shard.box.size * shard.parameter.element_size()
    return all(held.local.untyped_storage().nbytes() == payload_bytes > 0 for held in (shard, target))


def _moves(old: Stepper, new: Stepper) -> list[TensorMove]:
    """Returns the tensors to move: every parameter, followed by its moments if it is trained."""
    moves: list[TensorMove] = []
    for shard, target in zip(old.policy.every_shard, new.policy.every_shard, strict=True):
        item_bytes = shard.parameter.element_size()
        before = TensorMemory(lambda shard=shard: shard.local, shard.box, item_bytes)
        after = TensorMemory(
            lambda target=target: target.local,
            target.box,
            item_bytes,
            (lambda target=target: new.policy.allocate(target)) if target.local.is_meta else None,
        )
        moves.append(TensorMove(shard.name, shard.shape, before, after))
        if shard.parameter.requires_grad:
            for k, name in enumerate(("first moment", "second moment")):
                pair = _moment(old, shard, k), _moment(new, target, k)
                moves.append(TensorMove(f"{name} of {shard.name}", shard.shape, *pair))
    return moves


def _moment(stepper: Stepper, shard: Shard, which: int) -> TensorMemory:
    pair = stepper.optimizer.moments.get(shard.name)
    if pair is None:
        nothing = torch.zeros(0)
        return TensorMemory(lambda: nothing, shard.box, 4)

    def make() -> None:
        pair[which] = torch.empty_like(pair[which], device=stepper.group.device)

    return TensorMemory(lambda: pair[which], shard.box, 4, make if pair[which].is_meta else None)


def canary_logprobs(stepper: Stepper) -> np.ndarray:
    """Log-probs of the canaries through the first block, float32[tokens]; every replica computes them all.

    Blocks are alike, and no other's parameters have to be gathered: checksums tell whether every tensor has
    the values of before, and canaries whether the ranks compute with them as before. A collective.
    """
    tokens = canary_tokens(stepper.policy.spec.vocab)
    columns = Columns()
    count, length = tokens.shape
    columns.take([ReplicaSequence(n, 1, f"canary/{n}", 0.0, length, position=n) for n in range(count)])
    sampled = columns.sampled
    sampled["tokens"][:] = tokens.ravel()
    sampled["loss_mask"][:] = np.broadcast_to(np.arange(tokens.shape[1]) > 0, tokens.shape).ravel()
    sampled["logprobs"][:] = 0.0
    return stepper.logprobs(columns, 1.0, blocks=[0])
