"""The same batch and state give the same bits: in another process, from a checkpoint, in any order.

Run as a module this is that other process: it trains batch 2 from a checkpoint and prints a digest.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import xxhash

from earl.config.run import RunConfig
from earl.v1 import scheduler_pb2
from services.trainer.api.codec import decode_plan
from services.trainer.checkpoint import checkpoint
from services.trainer.ranks.process_group import Group, leave
from services.trainer.ranks.runtime import settle
from services.trainer.step.plan import TrainingPlan
from services.trainer.step.step import Stepper
from tests.support.policy import (
    columns_of,
    configuration,
    gathered,
    items_of,
    model_directory,
    plan_of,
    progress_at,
    stepper_for,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
TRAINER = {"threads": 2, "minibatches": 2, "passes": 2, "importance": "truncated", "microbatch_tokens": 128}


def deterministic() -> RunConfig:
    return configuration(**TRAINER).model_copy(update={"deterministic": True})


def batch(batch_id: int, first_ticket: int, shuffle: int | None = None) -> TrainingPlan:
    """Returns what a trainer decodes when the scheduler sends the batch's sequences in some order."""
    plan = plan_of(items_of(1000 * batch_id, 30), 1, batch_id)
    items = list(plan.ranks[0])
    if shuffle is not None:
        random.Random(shuffle).shuffle(items)
    message = scheduler_pb2.BatchPlan(
        batch_id=batch_id,
        version=batch_id,
        objective=scheduler_pb2.OBJECTIVE_POLICY_GRADIENT,
        first_of_phase=plan.first_of_phase,
    )
    rank = message.ranks.add()
    for item in items:
        values = asdict(item)
        rank.items.add(
            ticket_id=values["ticket_id"],
            attempt=1,
            descriptor_key=values["key"],
            advantage=values["advantage"],
            total_tokens=values["total_tokens"],
            position=values["position"],
        )
    decoded = decode_plan(message.SerializeToString(), 1)
    # Issued again after a roll-back, the same sequences belong to other tickets.
    return replace(
        decoded,
        ranks=(tuple(replace(item, ticket_id=first_ticket + item.position) for item in decoded.ranks[0]),),
    )


def digest(stepper: Stepper) -> str:
    hashed = xxhash.xxh3_128()
    for name, tensor in gathered(stepper).items():
        hashed.update(name.encode())
        hashed.update(tensor.numpy().tobytes())
    return hashed.hexdigest()


def train(stepper: Stepper, plan: TrainingPlan) -> None:
    """The columns of a sequence follow from its first ticket, wherever it stands now."""
    first = 1000 * plan.batch_id
    original = replace(
        plan, ranks=(tuple(replace(item, ticket_id=first + item.position) for item in plan.ranks[0]),)
    )
    columns = columns_of(original)
    columns.items = plan.ranks[0]
    stepper.train(plan, columns)


@pytest.fixture
def group() -> Iterator[Group]:
    settle(deterministic())
    group = Group("cpu")
    yield group
    group.close()
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(1)


def test_the_same_bits_from_a_checkpoint_in_another_process_and_in_another_order(
    group: Group, tmp_path: Path
) -> None:
    stepper = stepper_for(group, model_directory(tmp_path), deterministic())
    train(stepper, batch(1, 1000))
    checkpoint.save(tmp_path / "c", stepper, group, progress_at(stepper, 2), "hash", keep=1)
    train(stepper, batch(2, 2000))
    other = subprocess.run(
        [sys.executable, "-m", "tests.integration.test_trainer_deterministic", str(tmp_path)],
        check=True,
        timeout=100,
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"},
        capture_output=True,
        text=True,
    )
    assert other.stdout.strip() == digest(stepper)


def main(directory: Path) -> None:
    config = deterministic()
    settle(config)
    group = Group("cpu")
    stepper = stepper_for(group, directory / "model", config)
    found = checkpoint.latest(directory / "c", stepper, group)
    assert found is not None
    checkpoint.load(*found, stepper)
    train(stepper, batch(2, 777_000, shuffle=3))
    print(digest(stepper))
    group.close()
    leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
