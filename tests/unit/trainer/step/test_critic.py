"""PPO with a critic: a step against autograd over single trajectories, and what the critic is asked."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from earl.errors import TrainerError
from earl.fragments.credit import CreditedTokens, TokenCredit, gae
from earl.models.module import Decoder
from earl.models.spec import load_spec
from earl.models.weights import load_decoder
from services.trainer.checkpoint import checkpoint
from services.trainer.model.sharded_policy import CRITIC
from services.trainer.ranks.process_group import Group
from services.trainer.step.credit import credit_columns, explained_variance, whitened
from services.trainer.step.plan import RoleColumn, TrainingPlan
from services.trainer.step.step import Stepper
from tests.support.policy import (
    alone,
    columns_of,
    configuration,
    gathered,
    items_of,
    plan_of,
    progress_at,
    sequence,
    stepper_for,
    tiny_model,
    train,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")

group, model = alone, tiny_model
DISCOUNT, DECAY, COEFFICIENT, CLIP = 0.97, 0.8, 0.3, 0.05


def critic_stepper(group: Group, model: Path, **trainer: object) -> Stepper:
    settings = {
        "credit": "gae", "token_discount": DISCOUNT, "gae_lambda": DECAY, "value_coefficient": COEFFICIENT,
        "value_clip": CLIP, "entropy_coefficient": 0.0, **trainer,
    }  # fmt: skip
    stepper = stepper_for(group, model, configuration(**settings))
    for shard in stepper.policy.shards:
        if shard.name == CRITIC:
            # A critic that says something: from 0, its values and the trunk's gradient would be 0.
            shard.local.copy_(torch.linspace(-0.5, 0.5, 24))
    return stepper


def plain_descent(group: Group, model: Path, **trainer: object) -> Stepper:
    """A step of it is one of plain gradient descent: AdamW with a huge epsilon."""
    return critic_stepper(group, model, epsilon=1e3, lr=1e3, max_grad_norm=1e9, **trainer)


def critic_of(stepper: Stepper) -> torch.Tensor:
    return next(shard.local for shard in stepper.policy.shards if shard.name == CRITIC).clone()


def autograd(model: Path, plan: TrainingPlan, head: torch.Tensor) -> dict[str, torch.Tensor]:
    """Gradients of PPO's objective from its formulas, trajectory by trajectory, in float64."""
    decoder = Decoder(load_spec(model)).double()
    load_decoder(decoder, model)
    decoder.double()
    weight = head.double().requires_grad_()
    new, old, values, credits = [], [], [], []
    for item in plan.ranks[0]:
        columns = sequence(item.ticket_id, item.total_tokens)
        tokens = torch.from_numpy(columns["tokens"]).long()
        trained = np.flatnonzero(columns["loss_mask"])
        hidden = decoder.forward_packed(tokens, torch.arange(len(tokens)), [len(tokens)])
        new.append(torch.log_softmax(decoder.logits(hidden), -1)[trained - 1, tokens[trained]])
        old.append(torch.from_numpy(columns["logprobs"][trained]).double())
        values.append(hidden[trained - 1] @ weight)
        now = values[-1].detach().tolist()
        advantages, total = [], 0.0
        for t in reversed(range(len(trained))):
            last = t + 1 == len(trained)
            delta = (item.advantage if last else DISCOUNT * now[t + 1]) - now[t]
            total = delta + (0.0 if last else DISCOUNT * DECAY * total)
            advantages.append(total)
        credits.append(torch.tensor(advantages[::-1], dtype=torch.float64))
    advantages, value = torch.cat(credits), torch.cat(values)
    returns = advantages + value.detach()
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratio = (torch.cat(new) - torch.cat(old)).exp()
    gain = torch.minimum(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled)
    error = 0.5 * (value - returns).square()
    (error * COEFFICIENT - gain).mean().backward()
    gradients = {name: p.grad.float() for name, p in decoder.named_parameters() if p.grad is not None}
    assert weight.grad is not None
    return gradients | {CRITIC: weight.grad.float()}


@pytest.mark.parametrize("microbatch_tokens", [64, 4096])
def test_a_step_equals_autograd_over_single_trajectories(
    group: Group, model: Path, microbatch_tokens: int
) -> None:
    stepper = plain_descent(group, model, microbatch_tokens=microbatch_tokens)
    before, head = gathered(stepper), critic_of(stepper)
    plan = plan_of(items_of(1, 9), 1)
    stepper.train(plan, columns_of(plan))
    expected = autograd(model, plan, head)
    moved = {name: before[name] - tensor for name, tensor in gathered(stepper).items()}
    moved[CRITIC] = head - critic_of(stepper)
    assert float(expected[CRITIC].abs().max()) > 1e-3
    for name, gradient in expected.items():
        torch.testing.assert_close(moved[name], gradient, atol=3e-5, rtol=2e-3, msg=name)


def test_a_value_far_from_its_old_one_has_no_gradient_beyond_the_clip(group: Group, model: Path) -> None:
    """After many passes over the same returns, values stay within reach of value_clip."""
    moved = {}
    for bound in (1e-4, 10.0):
        stepper = critic_stepper(group, model, value_clip=bound, passes=12, value_coefficient=1.0)
        plan = plan_of(items_of(1, 9), 1)
        columns = columns_of(plan)
        before = stepper._outputs(columns, 1.0)[1]
        metrics = stepper.train(plan, columns)
        moved[bound] = float(np.abs(stepper._outputs(columns, 1.0)[1] - before).mean())
        assert metrics["value_loss"] > 0.0
    assert moved[1e-4] < moved[10.0]


def test_the_critic_learns_what_a_token_is_worth(group: Group, model: Path) -> None:
    stepper = critic_stepper(group, model, value_clip=10.0, value_coefficient=1.0, gae_lambda=1.0)
    items = [replace(item, advantage=2.0) for item in items_of(1, 9)]
    explained = []
    for batch in range(1, 30):
        plan = plan_of(items, 1, batch, first_of_phase=False)
        explained.append(stepper.train(plan, columns_of(plan)))
    assert explained[-1]["value_loss"] < 0.3 * explained[0]["value_loss"]


def test_values_that_are_not_finite_are_no_fault_of_the_fragment(group: Group, model: Path) -> None:
    stepper = critic_stepper(group, model)
    for shard in stepper.policy.shards:
        if shard.name == CRITIC:
            shard.local.fill_(torch.nan)
    with pytest.raises(TrainerError, match="batch 1 of version 1: log-probs or values are not finite"):
        train(stepper, 1)


def test_a_checkpoint_without_a_critic_begins_one(group: Group, model: Path, tmp_path: Path) -> None:
    plain = stepper_for(group, model, configuration())
    train(plain, 1)
    checkpoint.save(tmp_path / "kept", plain, group, progress_at(plain, 2), "hash", keep=1)
    stepper = critic_stepper(group, model)
    saved = checkpoint.latest(tmp_path / "kept", stepper, group)
    assert saved is not None
    checkpoint.load(*saved, stepper)
    assert not critic_of(stepper).any()
    tensors = gathered(stepper)
    assert all(torch.equal(tensors[name], tensor) for name, tensor in gathered(plain).items())
    assert train(stepper, 2)["value_loss"] > 0.0


def test_imitation_leaves_the_critic(group: Group, model: Path) -> None:
    stepper = critic_stepper(group, model)
    head = critic_of(stepper)
    metrics = train(stepper, 1, objective="imitate")
    assert torch.equal(critic_of(stepper), head) and "value_loss" not in metrics
    assert "value_loss" in train(stepper, 2)
    assert not torch.equal(critic_of(stepper), head)


def test_without_a_critic_there_are_no_figures_of_one(group: Group, model: Path) -> None:
    metrics = train(stepper_for(group, model, configuration()), 1)
    assert "value_loss" not in metrics and "explained_variance" not in metrics


def test_a_users_own_credit_may_have_a_critic(
    group: Group, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("users_credit")
    monkeypatch.setitem(sys.modules, "users_credit", module)

    def mine(tokens: CreditedTokens) -> TokenCredit:
        return gae(tokens)

    mine.needs_values = True  # type: ignore[attr-defined]
    module.mine = mine  # type: ignore[attr-defined]
    stepper = critic_stepper(group, model, credit="users_credit:mine")
    assert train(stepper, 1) == train(critic_stepper(group, model), 1)


def test_k1_is_in_the_reward(group: Group, model: Path) -> None:
    settings = {"kl_coefficient": 0.5, "kl_estimator": "k1"}
    stepper = stepper_for(group, model, configuration(**settings))
    items = [replace(item, columns=(RoleColumn("reference", ("reference/1",)),)) for item in items_of(1, 4)]
    plan = plan_of(items, 1)
    columns = columns_of(plan_of(items_of(1, 4), 1))
    columns.items = plan.ranks[0]
    reference = columns.roles["reference"]
    reference[:] = np.linspace(-2, 0, len(reference)) * columns.loss_mask
    credit = credit_columns(columns, lambda t: TokenCredit(t.rewards), stepper.config.trainer, None)
    for index, item in enumerate(items):
        span = slice(int(columns.offsets[index]), int(columns.offsets[index + 1]))
        trained = columns.loss_mask[span] == 1
        expected = -0.5 * (columns.logprobs[span] - reference[span])[trained]
        expected[-1] += item.advantage
        np.testing.assert_allclose(credit.advantages[span][trained], expected, rtol=1e-5)
    assert stepper.train(plan, columns)["kl_reference"] > 0.0


def test_whitened_advantages_have_mean_0_and_deviation_1_over_trained_tokens(
    group: Group, model: Path
) -> None:
    mesh = stepper_for(group, model, configuration()).mesh
    mask = np.array([0, 1, 1, 0, 1, 1], np.uint8)
    made = whitened(np.array([9, 1, 2, 9, 3, 6], np.float32), mask, mesh)
    np.testing.assert_allclose(made[mask == 0], 0.0)
    assert made[mask == 1].mean() == pytest.approx(0.0, abs=1e-6)
    assert made[mask == 1].std(ddof=1) == pytest.approx(1.0, abs=1e-6)


def test_explained_variance(group: Group, model: Path) -> None:
    mesh = stepper_for(group, model, configuration()).mesh
    mask = np.array([1, 1, 1, 1, 0], np.uint8)
    returns = np.array([1, 2, 3, 4, 99], np.float32)
    assert explained_variance(returns, returns, mask, mesh) == pytest.approx(1.0)
    assert explained_variance(returns, np.zeros(5, np.float32), mask, mesh) == pytest.approx(0.0)
    assert explained_variance(np.ones(5, np.float32), returns, mask, mesh) == 0.0
