"""The objectives against token-by-token references, and the weights that make parts add up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from services.trainer.model.losses import STAT_NAMES, PolicyGradient, imitation, k3, policy_gradient
from services.trainer.step.token_weights import token_weights


def _random(n: int, seed: int = 0) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed)
    logprobs = -torch.rand(n, generator=g) * 3
    return {
        "logprobs": logprobs.requires_grad_(),
        "entropy": torch.rand(n, generator=g).requires_grad_(),
        "behaviour": (logprobs + 0.5 * torch.randn(n, generator=g)).detach(),
        "advantages": torch.randn(n, generator=g),
        "weights": torch.full((n,), 1.0 / n),
    }


def _naive(data: dict[str, Any], settings: PolicyGradient, reference: torch.Tensor | None) -> dict:
    loss = kl = clipped_tokens = mismatch = kl_reference = 0.0
    data = {name: value.detach() for name, value in data.items()}
    for i in range(len(data["logprobs"])):
        new, old = float(data["logprobs"][i]), float(data["behaviour"][i])
        advantage, weight = float(data["advantages"][i]), float(data["weights"][i])
        ratio = math.exp(new - old)
        clipped = min(max(ratio, 1 - settings.clip_low), 1 + settings.clip_high)
        token = -min(ratio * advantage, clipped * advantage)
        token -= settings.entropy_coefficient * float(data["entropy"][i])
        if reference is not None:
            d = float(reference[i]) - new
            kl_reference += weight * (math.exp(d) - 1 - d)
            token += settings.kl_coefficient * (math.exp(d) - 1 - d)
        loss += weight * token
        kl += weight * (ratio - 1 - (new - old))
        clipped_tokens += weight * (clipped * advantage < ratio * advantage)
        mismatch += weight * abs(new - old)
    return {
        "loss": loss,
        "kl_behaviour": kl,
        "clip_fraction": clipped_tokens,
        "logprob_mismatch": mismatch,
        "kl_reference": kl_reference,
    }


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.1])
def test_policy_gradient_equals_the_token_by_token_reference(kl_coefficient: float) -> None:
    settings = PolicyGradient(0.2, 0.28, entropy_coefficient=0.01, kl_coefficient=kl_coefficient)
    data = _random(50)
    reference = data["behaviour"] * 1.1 if kl_coefficient else None
    result = policy_gradient(**data, settings=settings, reference=reference)
    stats = dict(zip(STAT_NAMES, result.stats.tolist(), strict=True))
    for name, value in _naive(data, settings, reference).items():
        assert stats[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert stats["clip_fraction"] > 0


def test_gradient_is_the_plain_policy_gradient_on_policy_and_zero_where_clipped() -> None:
    settings = PolicyGradient(0.2, 0.2)
    logprobs = torch.tensor([-1.0, -1.0, -1.0, -1.0], requires_grad=True)
    behaviour = torch.tensor([-1.0, -2.0, -0.1, -2.0])  # ratios 1, e, e^-0.9, e
    result = policy_gradient(
        logprobs,
        torch.zeros(4),
        behaviour,
        torch.tensor([2.0, 1.0, -1.0, -1.0]),
        torch.full((4,), 0.25),
        settings,
    )
    result.loss.backward()
    assert logprobs.grad is not None
    np.testing.assert_allclose(logprobs.grad.numpy(), [-0.5, 0.0, 0.0, 0.25 * math.e], rtol=1e-6)


def test_reference_policy_is_needed_for_its_kl() -> None:
    with pytest.raises(ValueError, match="reference"):
        policy_gradient(**_random(3), settings=PolicyGradient(0.2, 0.2, kl_coefficient=0.1))


def test_k3_is_never_negative_and_zero_where_equal() -> None:
    a = torch.linspace(-3, 0, 20)
    assert float(k3(a, a).abs().max()) == 0.0
    assert float(k3(a, a.flip(0)).min()) >= 0.0


def test_imitation_is_cross_entropy() -> None:
    logits = torch.randn(6, 9, requires_grad=True)
    targets = torch.arange(6)
    logprobs = torch.log_softmax(logits, -1)[torch.arange(6), targets]
    result = imitation(logprobs, torch.zeros(6), torch.full((6,), 1 / 6))
    torch.testing.assert_close(result.loss, torch.nn.functional.cross_entropy(logits, targets))


def test_token_weights_add_up_over_parts_and_follow_their_mean() -> None:
    counts = [3, 0, 5, 2]
    token = token_weights(counts, "token", 10, 3)
    np.testing.assert_allclose(token, np.full(10, 0.1, np.float32))
    sequence = np.concatenate([token_weights(part, "sequence", 10, 3) for part in ([3, 0], [5, 2])])
    np.testing.assert_allclose(sequence, [1 / 9] * 3 + [1 / 15] * 5 + [1 / 6] * 2, rtol=1e-6)
    assert sequence.sum() == pytest.approx(1.0)
    with pytest.raises(ValueError, match="median"):
        token_weights(counts, "median", 10, 3)
