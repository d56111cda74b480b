"""AdamW on local shards: what weight decay changes, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.trainer.ranks.process_group import Group
from tests.support.policy import alone, configuration, gathered, model_directory, stepper_for

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")

group = alone

LR, WEIGHT_DECAY = 0.25, 0.5


def test_weight_decay_shrinks_matrices_and_leaves_vectors_alone(group: Group, tmp_path: Path) -> None:
    stepper = stepper_for(group, model_directory(tmp_path), configuration(weight_decay=WEIGHT_DECAY))
    with torch.no_grad():
        for shard in stepper.policy.shards:
            if len(shard.shape) == 1:
                # Norms start as ones, all alike: other values show any change.
                shard.local.normal_(generator=torch.Generator().manual_seed(7))
    before = gathered(stepper)
    # Without a gradient, decay is all that a step does.
    for shard in stepper.policy.shards:
        shard.parameter.grad = torch.zeros_like(shard.parameter)
    stepper.optimizer.step(LR, norm=0.0, max_norm=1.0)
    after = gathered(stepper)
    vectors = {name for name, tensor in before.items() if tensor.dim() == 1}
    assert vectors and len(vectors) < len(before)
    for name, tensor in before.items():
        expected = tensor if name in vectors else tensor * (1.0 - LR * WEIGHT_DECAY)
        torch.testing.assert_close(after[name], expected, rtol=1e-6, atol=0.0, msg=name)
    assert all(torch.equal(after[name], before[name]) for name in vectors)
