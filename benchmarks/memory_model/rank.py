"""One rank of a trainer or of a reference stage: `python -m benchmarks.memory_model.rank CASE`.

Started fresh, with torchrun's environment. It works for a tiny model first, so that all is imported and
every thread is there, then for the case's; it says on stdout how much more memory that took at most.
Threads, allocator and process group are as the product sets them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.memory_model.cases import TURN_TOKENS, MemoryCase
from benchmarks.memory_model.measured import peak_bytes, present_bytes
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.ranks.process_group import Group, leave
from services.trainer.ranks.rank_mesh import RankMesh
from services.trainer.ranks.runtime import settle, settle_frozen
from services.trainer.reference.mesh import ReferenceMesh, make_reference_mesh
from services.trainer.reference.policy import MaskedTrajectory, ReferencePolicy, slices
from services.trainer.step.batch import Columns
from services.trainer.step.plan import ReplicaSequence, TrainingPlan
from services.trainer.step.step import Stepper

# Weights' deviation.
DEVIATION = 0.02


@dataclass(frozen=True, slots=True)
class Rank:
    group: Group
    place: ReferenceMesh | None

    @classmethod
    def of(cls, case: MemoryCase) -> Rank:
        """Joins the others, as a rank of the case's stage does."""
        config, degrees = case.config, case.degrees
        if case.stage == "reference":
            settle_frozen(config, config.reference.threads)
            group = Group(case.device)
            return cls(group, make_reference_mesh(group, degrees.dp, degrees.tp))
        settle(config)
        group = Group(case.device)
        return cls(group, None)

    def work(self, case: MemoryCase) -> None:
        if self.place is None:
            train(case, self.group)
        else:
            refer(case, self.place)


def measure(case: MemoryCase) -> dict[str, int]:
    """Bytes that the case takes of this rank; on a card also those that were in use at most."""
    rank = Rank.of(case)
    rank.work(case.tiny)
    if case.device == "cuda":
        rank.work(case)
        return {
            "bytes": torch.cuda.max_memory_reserved(),
            "allocated_bytes": torch.cuda.max_memory_allocated(),
        }
    before = present_bytes()
    rank.work(case)
    return {"bytes": peak_bytes() - before}


@torch.no_grad()
def fill(tensors: list[torch.Tensor]) -> None:
    generator = torch.Generator(tensors[0].device).manual_seed(0)
    for tensor in tensors:
        if tensor.ndim > 1:
            tensor.normal_(0.0, DEVIATION, generator=generator)
        else:
            tensor.fill_(1.0)


def train(case: MemoryCase, group: Group) -> None:
    """Two steps: the second one finds what the first one left behind."""
    config, spec, degrees = case.config, case.spec, case.degrees
    place = RankMesh(group, degrees, spec)
    policy = ShardedPolicy.of(spec, place, config)
    shards = {shard.name: shard for shard in (*policy.model_shards, *policy.shards)}
    fill([shard.local for shard in shards.values()])
    stepper = Stepper(policy, config)
    trajectories = [trajectory(case, number) for number in range(case.concurrency)]
    items = [
        ReplicaSequence(n, 1, sequence.key, 1.0, len(sequence.tokens), position=n)
        for n, sequence in enumerate(trajectories)
    ]
    ranks = tuple(tuple(items[rank :: degrees.dp]) for rank in range(degrees.dp))
    columns = Columns()
    columns.take(ranks[place.replica])
    for index, item in enumerate(ranks[place.replica]):
        sequence, into = trajectories[item.ticket_id], columns.of(index)
        into["tokens"][:], into["loss_mask"][:] = sequence.tokens, sequence.loss_mask
        into["logprobs"][:] = -np.log(spec.vocab) * sequence.loss_mask
    for version in (1, 2):
        stepper.train(
            TrainingPlan(version, version, "policy_gradient", ranks, False, False, 0.0, False), columns
        )
    place.close()


def refer(case: MemoryCase, place: ReferenceMesh) -> None:
    policy = ReferencePolicy(case.spec, place.tensor, place.group.device, case.config)
    fill(list(policy.decoder.parameters()))
    trajectories = [trajectory(case, number) for number in range(place.replica, case.concurrency, place.dp)]
    masks = np.concatenate([sequence.loss_mask for sequence in trajectories])
    box = slices(masks, place.tensor.size)[place.tensor.rank]
    policy.logprobs(trajectories, box, np.empty(box.size, np.float32))


def trajectory(case: MemoryCase, number: int) -> MaskedTrajectory:
    """Every other sequence is a token shorter: attention's rows are moved, as those of real ones are."""
    length = case.context_tokens - number % 2
    tokens = np.random.default_rng(number).integers(0, case.spec.vocab, length).astype(np.int32)
    mask = (np.arange(length) // TURN_TOKENS % 2).astype(np.uint8)
    tokens[: case.shared_tokens], mask[: case.shared_tokens] = 1, 0
    return MaskedTrajectory(f"m{number}", tokens, mask)


if __name__ == "__main__":
    print(json.dumps(measure(MemoryCase(**json.loads(sys.argv[1])))), flush=True)
    leave(0)
