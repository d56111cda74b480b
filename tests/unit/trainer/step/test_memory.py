"""A step that finds no memory is repeated with smaller micro-batches, or costs the batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from earl.config.model import ScratchModel
from earl.errors import OutOfMemory
from services.trainer.ranks.process_group import Group
from services.trainer.step.plan import ReplicaSequence
from services.trainer.step.step import Stepper
from tests.support.memory_bound import no_more_than
from tests.support.policy import (
    alone,
    columns_of,
    configuration,
    gathered,
    items_of,
    model_directory,
    plan_of,
    stepper_for,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
group = alone
# 12 KiB of activations a token.
WIDE = ScratchModel(hidden_size=128, intermediate_size=512, layers=2, heads=4, kv_heads=4)
TOKENS = 1 << 13
# Single tensors of it are larger than malloc takes from memory that earlier tests have freed.
LONG_TOKENS = 4 * TOKENS
MIB = 1 << 20


def train(stepper: Stepper, items: list[ReplicaSequence], batch_id: int = 1) -> None:
    plan = plan_of(items, 1, batch_id)
    stepper.train(plan, columns_of(plan))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return model_directory(tmp_path, WIDE)


def test_a_step_without_memory_is_repeated_in_smaller_parts(
    group: Group, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configuration(microbatch_tokens=TOKENS, share_prefixes=False)
    free, bounded = stepper_for(group, model, config), stepper_for(group, model, config)
    for stepper in (free, bounded):
        # What later steps find is there: moments, threads, gathered parameters.
        train(stepper, items_of(1000, 2))
    with no_more_than(24 * MIB):
        train(bounded, items_of(1000, 240), 2)
    assert 64 <= bounded.microbatch_tokens < TOKENS and "no memory for a micro-batch" in caplog.text
    train(free, items_of(1000, 240), 2)
    assert free.microbatch_tokens == TOKENS
    for name, tensor in gathered(free).items():
        torch.testing.assert_close(gathered(bounded)[name], tensor, rtol=1e-3, atol=1e-4)


def test_what_no_micro_batch_holds_raises_and_the_next_batch_is_trained(group: Group, model: Path) -> None:
    config = configuration(microbatch_tokens=LONG_TOKENS, share_prefixes=False)
    stepper = stepper_for(group, model, config)
    train(stepper, items_of(1000, 2))
    before, updates = gathered(stepper), stepper.optimizer.updates
    long = ReplicaSequence(1, 1, "trajectory/1/1", 1.0, LONG_TOKENS)
    with no_more_than(24 * MIB), pytest.raises(OutOfMemory, match=r"lower trainer\.microbatch_tokens"):
        train(stepper, [long], 2)
    assert stepper.optimizer.updates == updates and stepper.microbatch_tokens == LONG_TOKENS
    assert all(torch.equal(before[name], tensor) for name, tensor in gathered(stepper).items())
    train(stepper, items_of(1000, 4), 2)
    assert stepper.optimizer.updates == updates + 1
