"""A step with each loss fragment and each importance weight, against autograd over single trajectories."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from earl.errors import ConfigError, FragmentError
from earl.fragments import credit, weights
from earl.fragments.losses import LOSSES, TokenLosses, TrainedTokens, losses_of
from earl.fragments.names import CREDITS, IMPORTANCE, WITH_CRITIC
from earl.fragments.names import LOSSES as NAMES
from earl.models.module import Decoder
from earl.models.spec import load_spec
from earl.models.weights import load_decoder
from services.trainer.ranks.process_group import Group
from tests.support.policy import (
    alone,
    columns_of,
    configuration,
    gathered,
    items_of,
    plan_of,
    sequence,
    stepper_for,
    tiny_model,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")

group, model = alone, tiny_model
LOW, HIGH, DUAL = 0.2, 0.3, 1.05
FLOOR, CAP = 1.0, 1.2


def ppo(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    ratio = (new - old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)


def dual(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    loss = ppo(new, old, advantage)
    return loss.clamp(max=-DUAL * advantage) if advantage < 0 else loss


def bounded_weights(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    return -(new - old).exp().clamp(max=1 + HIGH).detach() * advantage * new


def whole_ratio(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
    """GSPO's loss of a trajectory, at each of its tokens: their mean is it."""
    ratio = (new - old).mean().exp()
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)
    return loss.expand(len(new))


# A trajectory's losses, float32[its trained tokens], from log-probs now and before and its advantage.
EXPECTED: dict[str, Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]] = {
    "clip": ppo,
    "dual-clip": dual,
    "cispo": bounded_weights,
    "gspo": whole_ratio,
}


def logprobs_of(decoder: Decoder, columns: dict[str, np.ndarray]) -> torch.Tensor:
    tokens = torch.from_numpy(columns["tokens"]).long()
    hidden = decoder.forward_packed(tokens, torch.arange(len(tokens)), [len(tokens)])
    trained = np.flatnonzero(columns["loss_mask"])
    return torch.log_softmax(decoder.logits(hidden), -1)[trained - 1, tokens[trained]]


def _bounded(ratio: torch.Tensor) -> torch.Tensor:
    return torch.where((ratio >= FLOOR) & (ratio <= CAP), ratio, 0.0)


# Tokens' weights of a trajectory, of their ratios trainer / engine.
WEIGHTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "truncated": lambda ratio: ratio.clamp(max=CAP),
    "masked": _bounded,
    "decoupled": lambda ratio: ratio,
    "sequence-truncated": lambda ratio: ratio.prod().clamp(max=CAP).expand(len(ratio)),
    "sequence-masked": lambda ratio: _bounded(ratio.prod()).expand(len(ratio)),
}


def reference_gradients(model: Path, loss: str, importance: str = "behaviour") -> dict[str, torch.Tensor]:
    """Gradients of the mean over trajectories of the means of their losses."""
    decoder = Decoder(load_spec(model))
    load_decoder(decoder, model)
    losses = []
    for item in items_of(1, 9):
        columns = sequence(item.ticket_id, item.total_tokens)
        old = torch.from_numpy(columns["logprobs"][columns["loss_mask"] > 0])
        new = logprobs_of(decoder, columns)
        weights = torch.ones(len(new))
        if importance != "behaviour":
            # The first step of a batch: the trainer's own log-probs at its start are those now.
            old, weights = new.detach(), WEIGHTS[importance]((new - old).exp().detach())
        losses.append((weights * EXPECTED[loss](new, old, item.advantage)).mean())
    torch.stack(losses).mean().backward()
    return {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}


def one_step(group: Group, model: Path, **trainer: object) -> dict[str, torch.Tensor]:
    """Differences of parameters after one step of plain gradient descent: AdamW with a huge epsilon."""
    settings = {
        "entropy_coefficient": 0.0, "epsilon": 1e3, "lr": 1e3, "max_grad_norm": 1e9, "clip_low": LOW,
        "clip_high": HIGH, "dual_clip": DUAL, "loss_mean": "sequence", "weight_decay": 0.0, **trainer,
    }  # fmt: skip
    stepper = stepper_for(group, model, configuration(**settings))
    before = gathered(stepper)
    plan = plan_of(items_of(1, 9), 1)
    stepper.train(plan, columns_of(plan))
    return {name: before[name] - tensor for name, tensor in gathered(stepper).items()}


@pytest.mark.parametrize("microbatch_tokens", [64, 4096])
@pytest.mark.parametrize("loss", list(LOSSES))
def test_a_step_follows_the_gradient_of_the_fragments_formula(
    group: Group, model: Path, loss: str, microbatch_tokens: int
) -> None:
    moved = one_step(group, model, loss=loss, microbatch_tokens=microbatch_tokens)
    expected = reference_gradients(model, loss)
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in expected.values())
    for name, gradient in expected.items():
        torch.testing.assert_close(moved[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


def test_the_settings_tell_the_losses_apart(model: Path) -> None:
    gradients = [reference_gradients(model, loss)["model.embed_tokens.weight"] for loss in EXPECTED]
    for number, each in enumerate(gradients):
        assert not any(torch.allclose(each, other, atol=1e-4) for other in gradients[:number])


@pytest.mark.parametrize("importance", list(WEIGHTS))
def test_a_step_weighs_tokens_by_their_importance(group: Group, model: Path, importance: str) -> None:
    moved = one_step(group, model, importance=importance, importance_cap=CAP, importance_floor=FLOOR)
    expected = reference_gradients(model, "clip", importance)
    for name, gradient in expected.items():
        torch.testing.assert_close(moved[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


def test_names_are_those_of_the_fragments() -> None:
    assert tuple(LOSSES) == NAMES == tuple(EXPECTED)
    assert ("behaviour", *weights.WEIGHTS) == IMPORTANCE == ("behaviour", *WEIGHTS)
    assert tuple(credit.CREDITS) == CREDITS
    assert {name for name, made in credit.CREDITS.items() if credit.needs_values(made)} == WITH_CRITIC


def tokens_of(count: int) -> TrainedTokens:
    logprobs = torch.linspace(-2.0, -0.1, count).requires_grad_()
    return TrainedTokens(logprobs, logprobs.detach() - 0.1, torch.ones(count), LOW, HIGH)


@pytest.mark.parametrize(
    "returned, said",
    [
        (lambda t: TokenLosses(t.logprobs[:1], t.logprobs > 0), r"returned torch.float32\[1\] as loss"),
        (lambda t: TokenLosses(t.logprobs.double(), t.logprobs > 0), r"returned torch.float64\[4\] as loss"),
        (lambda t: TokenLosses(t.logprobs, t.logprobs), r"torch.float32\[4\] as clipped"),
        (lambda t: TokenLosses(t.old, t.old > 0), "does not depend on logprobs"),
        (lambda t: None, "AttributeError"),
        (lambda t: LOSSES["gspo"](t), "sequence_log_ratio is missing"),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_the_fragment(
    returned: Callable[[TrainedTokens], TokenLosses], said: str
) -> None:
    with pytest.raises(FragmentError, match=said) as raised:
        losses_of("mine:bad", returned, tokens_of(4))
    assert "trainer.loss = 'mine:bad'" in str(raised.value)


@pytest.mark.parametrize(
    "returned, said",
    [
        (lambda r: r.token[:1], r"returned torch.float32\[1\]"),
        (lambda r: r.token.double(), r"returned torch.float64\[4\]"),
        (lambda r: r.token.tolist(), "returned \\[1.0, 1.0"),
        (lambda r: r.token / None, "TypeError"),
        (lambda r: weights.sequence_masked(r), "trajectory is missing"),
    ],
)
def test_weights_that_cannot_be_used_are_an_error_that_names_the_fragment(
    returned: Callable[[weights.EngineRatios], torch.Tensor], said: str
) -> None:
    with pytest.raises(FragmentError, match=said) as raised:
        weights.weights_of("mine:bad", returned, weights.EngineRatios(torch.ones(4), 2.0, 0.5))
    assert "trainer.importance = 'mine:bad'" in str(raised.value)


def test_a_users_own_loss_trains(group: Group, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("users_losses")
    monkeypatch.setitem(sys.modules, "users_losses", module)

    def plain(tokens: TrainedTokens) -> TokenLosses:
        loss = -tokens.advantages * tokens.logprobs
        return TokenLosses(loss, torch.zeros_like(loss, dtype=torch.bool))

    module.plain = plain  # type: ignore[attr-defined]
    moved = one_step(group, model, loss="users_losses:plain")
    monkeypatch.setitem(EXPECTED, "plain", lambda new, old, advantage: -advantage * new)
    for name, gradient in reference_gradients(model, "plain").items():
        torch.testing.assert_close(moved[name], gradient, atol=2e-5, rtol=1e-3, msg=name)
    with pytest.raises(ConfigError, match="has no other"):
        stepper_for(group, model, configuration(loss="users_losses:other"))
