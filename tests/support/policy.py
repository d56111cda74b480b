"""A tiny policy, random batches for it, and the group that it lives in: for the trainer's tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor

from earl.config.model import ScratchModel
from earl.config.run import RunConfig
from earl.models.create import write_scratch
from earl.models.spec import load_spec
from earl.parallelism import Parallelism
from earl.ticket_ranges import RangeSet
from services.trainer.checkpoint.manifest import TrainingProgress
from services.trainer.model.sharded_policy import CRITIC, ShardedPolicy
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.rank_mesh import RankMesh
from services.trainer.step.batch import Columns
from services.trainer.step.plan import ReplicaSequence, RoleColumn, TrainingPlan
from services.trainer.step.step import Stepper

# Sizes that 2 and 3 ranks cut unevenly; of 4 vocabulary rows the last of 3 ranks gets none.
SCRATCH = ScratchModel(hidden_size=24, intermediate_size=20, layers=2, heads=2, kv_heads=1)
VOCABULARY = 4


@pytest.fixture(scope="module")
def alone() -> Iterator[Group]:
    """This process as a group of one; a module takes it by name: `group = alone`."""
    torch.set_num_threads(1)
    group = Group("cpu")
    yield group
    group.close()


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A scratch model of the test's own; a module takes it by name: `model = tiny_model`."""
    return model_directory(tmp_path)


def configuration(**trainer: object) -> RunConfig:
    settings = {"lr": 1e-2, "microbatch_tokens": 64, "entropy_coefficient": 0.01, "device": "cpu", **trainer}
    return RunConfig.model_validate({"name": "t", "environment": {"name": "e"}, "trainer": settings})


def taught(config: RunConfig) -> RunConfig:
    """The configuration with a teacher."""
    teacher = config.teacher.model_copy(update={"path": "teacher", "coefficient": 0.5})
    return config.model_copy(update={"teacher": teacher})


def model_directory(path: Path, scratch: ScratchModel = SCRATCH) -> Path:
    """A scratch model below `path`, made once."""
    directory = path / "model"
    if not directory.exists():
        write_scratch(directory, scratch, 3, "float32")
    return directory


def stepper_for(
    group: Group, model: Path, config: RunConfig, parallelism: Parallelism | None = None
) -> Stepper:
    """In a cut of the group's ranks; None: each is a replica."""
    spec = load_spec(model)
    policy = ShardedPolicy.of(spec, RankMesh(group, parallelism or Parallelism(group.size), spec), config)
    policy.fill(model, config.seed)
    return Stepper(policy, config)


def sequence(ticket_id: int, length: int) -> dict[str, np.ndarray]:
    """Columns of a random trajectory that the ticket determines; two of three share a prompt with others."""
    rng = np.random.default_rng(ticket_id)
    tokens = rng.integers(0, VOCABULARY, length).astype(np.int32)
    mask = (rng.random(length) < 0.4).astype(np.uint8)
    if ticket_id % 3:
        prompt = np.random.default_rng(ticket_id // 6).integers(0, VOCABULARY, 14)[: length - 1]
        tokens[: len(prompt)] = prompt
        mask[: len(prompt)] = 0
    mask[0] = 0
    mask[-1] = 1
    return {
        "tokens": tokens,
        "loss_mask": mask,
        "logprobs": (-1.4 - 0.3 * rng.random(length)).astype(np.float32) * mask,
        # Of frozen policies, where the plan wants them.
        "teacher": (-1.3 - 0.3 * rng.random(length)).astype(np.float32) * mask,
        # Of turns, in a run that has them.
        "rewards": rng.normal(size=length).astype(np.float32) * ends_of_turns(mask),
    }


def ends_of_turns(mask: np.ndarray) -> np.ndarray:
    """bool[length]: the last trained token of each turn."""
    return (mask == 1) & (np.append(mask[1:], 0) == 0)


def items_of(first_ticket: int, count: int) -> list[ReplicaSequence]:
    rng = np.random.default_rng(first_ticket)
    return [
        ReplicaSequence(i, 1, f"trajectory/{i}/1", float(rng.normal()), int(rng.integers(5, 40)))
        for i in range(first_ticket, first_ticket + count)
    ]


def plan_of(items: list[ReplicaSequence], ranks: int, batch_id: int = 1, **changes: Any) -> TrainingPlan:
    """The items dealt out to ranks in turn."""
    items = [replace(item, position=position) for position, item in enumerate(items)]
    values: dict[str, Any] = {
        "batch_id": batch_id,
        "version": batch_id,
        "objective": "policy_gradient",
        "ranks": tuple(tuple(items[r::ranks]) for r in range(ranks)),
        "publish": True,
        "checkpoint": False,
        "progress": 0.0,
        "first_of_phase": batch_id == 1,
    }
    return TrainingPlan(**{**values, **changes})


def columns_of(plan: TrainingPlan, rank: int = 0, *, turn_rewards: bool = False) -> Columns:
    columns = Columns(turn_rewards=turn_rewards)
    columns.take(plan.ranks[rank])
    for i, item in enumerate(plan.ranks[rank]):
        for name, into in columns.of(i).items():
            into[:] = sequence(item.ticket_id, item.total_tokens)[name]
    return columns


def train(stepper: Stepper, batch_id: int, count: int = 17, **changes: Any) -> dict[str, float]:
    """One batch of random trajectories, the same for any cut."""
    mesh, items = stepper.mesh, items_of(1000 * batch_id, count)
    if changes.get("teacher_weight"):
        items = [replace(item, columns=(RoleColumn("teacher", ("teacher/1",)),)) for item in items]
    plan = plan_of(items, mesh.data_ranks, batch_id, **changes)
    turn_rewards = stepper.config.trainer.turn_rewards
    return stepper.train(plan, columns_of(plan, mesh.replica, turn_rewards=turn_rewards))


def gathered(stepper: Stepper) -> dict[str, torch.Tensor]:
    """Every tensor of the model, whole, and the critic if there is one; a collective."""
    tensors = {name: tensor.clone() for name, tensor in stepper.policy.gathered()}
    for shard in stepper.policy.shards:
        if shard.name == CRITIC:
            tensors[CRITIC] = cast("DTensor", shard.parameter.detach()).full_tensor().clone()
    return tensors


def progress_at(stepper: Stepper, version: int) -> TrainingProgress:
    return TrainingProgress(version, version, RangeSet([(1, 10 * version)]), stepper.optimizer.updates)


RANKS_CONFIG = {"minibatches": 2, "passes": 2, "loss_mean": "sequence"}
TAUGHT_CONFIG = {**RANKS_CONFIG, "importance": "truncated"}
# Ratios of trajectories, whose tokens several ranks have.
SEQUENCES_CONFIG = {**RANKS_CONFIG, "loss": "gspo", "importance": "masked"}
ADAPTED_CONFIG = {
    **RANKS_CONFIG,
    "importance": "truncated",
    "activation_checkpointing": True,
    "lora_rank": 2,
    "lora_alpha": 4.0,
    "credit": "gae",
}
CRITIC_CONFIG = {
    **RANKS_CONFIG,
    "credit": "gae",
    "gae_lambda": 0.8,
    "turn_discount": 0.9,
    "turn_rewards": True,
    "value_coefficient": 0.5,
    "importance": "sequence-truncated",
    # So that an update does not follow the sign of a gradient that is hardly more than rounding.
    "epsilon": 1e-5,
}
