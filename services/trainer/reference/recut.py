"""The reference stage's part of a switch: the frozen policy's slices in another (dp, tp)."""

from __future__ import annotations

import numpy as np

from earl.dispatch.layout.box import Box
from earl.dispatch.plan.reshard_plan import Recut
from earl.errors import IllegalParallelism
from earl.models.spec import ModelSpec
from earl.models.tp import check_tp
from earl.parallelism import Parallelism
from services.trainer.reference.place import ReferenceMesh, make_reference_mesh
from services.trainer.reference.policy import MaskedTrajectory, ReferencePolicy
from services.trainer.reshard.reshard import MovingTensor, TensorMemory, boxes_by_rank
from services.trainer.reshard.switch import canary_tokens


def check_reference_mesh(parallelism: Parallelism, ranks: int, spec: ModelSpec) -> None:
    """Raises IllegalParallelism for what is no cut of a reference stage of so many ranks."""
    if parallelism.devices != ranks or parallelism.cp * parallelism.pp > 1:
        raise IllegalParallelism(
            f"{parallelism} of {parallelism.devices} ranks is no cut of a reference stage of {ranks} ranks",
            f"use dp and tp whose product is {ranks}",
        )
    check_tp(spec, parallelism.tp)


class ReferenceChange:
    """place, policy: to go on with. loaded: whether there are weights to be moved."""

    def __init__(self, place: ReferenceMesh, policy: ReferencePolicy, *, loaded: bool) -> None:
        self.place, self.policy = place, policy
        self._loaded = loaded
        self._new: tuple[ReferenceMesh, ReferencePolicy] | None = None
        self.group = place.group
        self.parallelism = place.parallelism

    def prepare(self, wanted: Parallelism) -> list[MovingTensor]:
        place = make_reference_mesh(self.group, wanted.dp, wanted.tp)
        old, new = self.policy, self.policy.recut(place.tensor)
        self._new = place, new
        names = list(old.boxes())
        before, after = ([policy.boxes()[name][1] for name in names] for policy in (old, new))
        by_rank = [boxes_by_rank(boxes, self.group) for boxes in (before, after)]
        shapes = old.spec.shapes()
        found: list[MovingTensor] = []
        for name, *boxes, held in zip(names, *by_rank, zip(before, after, strict=True), strict=True):
            item_bytes = old.decoder.get_parameter(name).element_size()
            found.append(
                MovingTensor(
                    Recut(shapes[name], item_bytes, *boxes),
                    _memory(old, name, held[0], item_bytes, made=True),
                    _memory(new, name, held[1], item_bytes, made=False),
                )
            )
        return found

    def arena_bytes(self) -> int:
        return 0

    def reserve(self) -> None:
        """A stage's room for log-probs does not depend on its cut."""

    def canaries(self, *, new: bool) -> np.ndarray:
        tokens = canary_tokens(self.policy.spec.vocab)
        values = np.zeros(tokens.size, np.float32)
        if self._loaded:
            mask = (np.arange(tokens.shape[1]) > 0).astype(np.uint8)
            sequences = [MaskedTrajectory(f"canary/{n}", row, mask) for n, row in enumerate(tokens)]
            policy = self._made[1] if new else self.policy
            policy.logprobs(sequences, Box.whole(values.shape), values)
        return values

    def reshard(self) -> None:
        """Nothing is gathered here."""

    def keep(self) -> None:
        self.place.close()
        self.place, self.policy = self._made

    def drop(self) -> None:
        self._made[0].close()

    @property
    def _made(self) -> tuple[ReferenceMesh, ReferencePolicy]:
        assert self._new is not None
        return self._new


def _memory(policy: ReferencePolicy, name: str, box: Box, item_bytes: int, *, made: bool) -> TensorMemory:
    return TensorMemory(
        lambda: policy.decoder.get_parameter(name).data,
        box,
        item_bytes,
        None if made else lambda: policy.allocate(name),
    )
