"""The fragments that docs/algorithms.md gives as examples, as a reader would copy them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from earl.fragments.advantages import GroupOutcomes, advantages_of
from earl.fragments.credit import CreditedTokens, credit_of
from earl.fragments.losses import TrainedTokens, losses_of
from tests.support.paths import ROOT


def written() -> dict[str, Any]:
    """Returns the names that the Python blocks of the page define, all in one module."""
    page = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(compile(block, "docs/algorithms.md", "exec"), names)
    return names


def test_the_pages_advantage_credit_and_loss_are_fragments() -> None:
    names = written()
    group = GroupOutcomes((1.0, 0.25), (3, 4))
    assert advantages_of("page:below_best", names["below_best"], [group]) == [[0.0, -0.75]]
    credited = CreditedTokens(np.array([0, 0, 1.5], np.float32), np.zeros(3, np.int64))
    assert credit_of("page:shared_out", names["shared_out"], credited).advantages.tolist() == [0.5] * 3
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    tokens = TrainedTokens(logprobs, logprobs.detach(), torch.tensor([2.0, -1.0]), 0.2, 0.2)
    losses_of("page:reinforce", names["reinforce"], tokens).loss.sum().backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [-2.0, 1.0]
