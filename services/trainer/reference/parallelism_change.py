"""The part of a frozen policy's stage in a switch: the frozen policy's slices in another (dp, tp)."""

from __future__ import annotations

import numpy as np

from earl.dispatch.layout.box import Box
from earl.errors import IllegalParallelism
from earl.models.spec import ModelSpec
from earl.models.tp import check_tp
from earl.parallelism import Parallelism
from services.trainer.reference.mesh import ReferenceMesh, make_reference_mesh
from services.trainer.reference.policy import FrozenPolicy, MaskedTrajectory, ReferencePolicy
from services.trainer.reshard.moving_tensor import MovingTensor, TensorMemory
from services.trainer.reshard.reshard import TensorMove, moving_tensors
from services.trainer.reshard.switch import ParallelismChange, canary_tokens


def check_reference_mesh(parallelism: Parallelism, ranks: int, spec: ModelSpec) -> None:
    """Raises IllegalParallelism for what a stage of so many ranks cannot be."""
    if parallelism.devices != ranks or parallelism.cp * parallelism.pp > 1:
        raise IllegalParallelism(
            f"{parallelism} of {parallelism.devices} ranks is no parallelism of a stage of {ranks}",
            f"use dp and tp whose product is {ranks}",
        )
    check_tp(spec, parallelism.tp)


class ReferenceChange(ParallelismChange):
    """The change of one rank's policy. The space for log-probs is the same in any parallelism.

    mesh, policy: those to compute with, the old or the new. loaded: whether there are weights to be moved.
    """

    def __init__(self, mesh: ReferenceMesh, policy: ReferencePolicy, *, loaded: bool) -> None:
        super().__init__(mesh.group, mesh.parallelism)
        self.mesh, self.policy = mesh, policy
        self._loaded = loaded
        self._new_mesh: ReferenceMesh | None = None
        self._new: tuple[ReferenceMesh, ReferencePolicy] | None = None

    def join(self, parallelism: Parallelism) -> None:
        self._new_mesh = make_reference_mesh(self.group, parallelism.dp, parallelism.tp)

    def prepare(self) -> list[MovingTensor]:
        assert self._new_mesh is not None
        old, new = self.policy, self.policy.resharded(self._new_mesh.tensor)
        self._new = self._new_mesh, new
        shapes, before, after = old.spec.shapes(), old.boxes(), new.boxes()
        moves = []
        for name in before:
            item_bytes = old.decoder.get_parameter(name).element_size()
            same = before[name][1] == after[name][1]
            if same:
                new.adopt(name, old.decoder.get_parameter(name).data)
            source = _memory(old, name, before[name][1], item_bytes, made=True)
            target = _memory(new, name, after[name][1], item_bytes, made=same)
            moves.append(TensorMove(name, shapes[name], source, target))
        return moving_tensors(moves, self.group)

    def canaries(self, *, new: bool) -> np.ndarray:
        return canary_logprobs(self._made[1] if new else self.policy, loaded=self._loaded)

    def keep(self) -> None:
        self.mesh.close()
        self.mesh, self.policy = self._made

    def drop(self) -> None:
        self._made[0].close()

    @property
    def _made(self) -> tuple[ReferenceMesh, ReferencePolicy]:
        assert self._new is not None
        return self._new


def canary_logprobs(policy: FrozenPolicy, *, loaded: bool) -> np.ndarray:
    """Log-probs of the canaries, float32[tokens]: zeros while the policy has no weights. A collective of the
    ranks of a replica."""
    tokens = canary_tokens(policy.spec.vocab)
    values = np.zeros(tokens.size, np.float32)
    if loaded:
        mask = (np.arange(tokens.shape[1]) > 0).astype(np.uint8)
        sequences = [MaskedTrajectory(f"canary/{n}", row, mask) for n, row in enumerate(tokens)]
        policy.logprobs(sequences, Box.whole(values.shape), values)
    return values


def _memory(policy: ReferencePolicy, name: str, box: Box, item_bytes: int, *, made: bool) -> TensorMemory:
    return TensorMemory(
        lambda: policy.decoder.get_parameter(name).data,
        box,
        item_bytes,
        None if made else lambda: policy.allocate(name),
    )
