"""A rank's state outside of its device's memory: the same bits afterwards, readable meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from torch.distributed.tensor import DTensor

from earl.errors import TrainerError
from services.trainer.checkpoint import checkpoint
from services.trainer.ranks.process_group import Group
from services.trainer.step.state_offload import StateOffload
from services.trainer.step.step import Stepper
from tests.support.policy import (
    alone,
    configuration,
    gathered,
    model_directory,
    progress_at,
    stepper_for,
    train,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
group = alone


@pytest.fixture(params=[0, 2])
def stepper(request, group: Group, tmp_path: Path) -> Stepper:
    return stepper_for(group, model_directory(tmp_path), configuration(lora_rank=request.param))


def held_bytes(stepper: Stepper) -> int:
    parameters = [cast(DTensor, each)._local_tensor for each in stepper.policy.decoder.parameters()]
    moments = [moment for pair in stepper.optimizer.moments.values() for moment in pair]
    gradients = [shard.gradient for shard in stepper.policy.shards if shard.gradient is not None]
    return sum(tensor.untyped_storage().nbytes() for tensor in (*parameters, *moments, *gradients))


def test_training_continues_with_the_same_bits(group: Group, stepper: Stepper, tmp_path: Path) -> None:
    twin = stepper_for(group, tmp_path / "model", stepper.config)
    offload = StateOffload(stepper, tmp_path / "state")
    for version in (1, 2, 3):
        train(twin, version)
        train(stepper, version)
        offload.offload()
        assert held_bytes(stepper) == 0 and (tmp_path / "state").stat().st_size > 0
        offload.offload()
        offload.restore()
        offload.restore()
        assert not (tmp_path / "state").exists()
    assert all(
        torch.equal(a, b) for a, b in zip(gathered(stepper).values(), gathered(twin).values(), strict=True)
    )


def test_a_checkpoint_is_saved_from_where_the_state_lies(stepper: Stepper, tmp_path: Path) -> None:
    train(stepper, 1)
    saved = []
    offload = StateOffload(stepper, tmp_path / "state")
    for version in (2, 3):
        with offload.readable():
            path = checkpoint.save(
                tmp_path, stepper, stepper.group, progress_at(stepper, version), "hash", keep=2
            )
        saved.append((path / "rank-00000.safetensors").read_bytes())
        offload.offload()
    assert saved[0] == saved[1] and held_bytes(stepper) == 0
    offload.restore()
    train(stepper, 2)


def test_on_a_processor_without_a_file_only_gradients_go(stepper: Stepper) -> None:
    train(stepper, 1)
    before = held_bytes(stepper)
    offload = StateOffload(stepper)
    offload.offload()
    assert offload.offloaded and 0 < held_bytes(stepper) < before
    assert all(shard.gradient is None for shard in stepper.policy.shards)
    with offload.readable():
        assert held_bytes(stepper) > 0
    offload.restore()
    train(stepper, 2)


def test_a_file_that_cannot_be_written_leaves_the_state_whole(stepper: Stepper, tmp_path: Path) -> None:
    train(stepper, 1)
    offload = StateOffload(stepper, tmp_path / "none" / "state")
    with pytest.raises(TrainerError, match="cannot be written") as raised:
        offload.offload()
    assert "trainer.offload_dir" in raised.value.remedy and not offload.offloaded
    train(stepper, 2)
