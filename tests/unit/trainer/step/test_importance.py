"""Truncated importance sampling, the mismatch metrics, and how token losses become one number."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from earl.errors import TrainerError
from earl.fragments.weights import truncated
from services.trainer.model.losses import STAT_NAMES, PolicyGradient, policy_gradient
from services.trainer.ranks.process_group import Group
from services.trainer.step.batch import Columns
from services.trainer.step.plan import RoleColumn, TrainingPlan
from services.trainer.step.step import Stepper
from services.trainer.step.token_weights import token_weights
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
    train,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")

# Of the configuration's sampling.
TEMPERATURE = 1.0


group, model = alone, tiny_model


def test_each_token_weighs_its_own_truncated_ratio() -> None:
    new = torch.tensor([-1.0, -1.5, -0.5], requires_grad=True)
    start = torch.tensor([-1.1, -1.4, -0.5])
    engine = torch.tensor([-1.3, -1.2, -2.5])
    gains = torch.tensor([1.0, -2.0, 0.5])
    settings = PolicyGradient(0.5, 0.5, weight_name="truncated", weight=truncated, importance_cap=2.0)
    result = policy_gradient(
        new, torch.zeros(3), engine, gains, torch.full((3,), 1 / 3), settings, start=start
    )
    expected = 0.0
    slopes = []
    for i in range(3):
        ratio = math.exp(float(new.detach()[i]) - float(start[i]))
        weight = min(math.exp(float(start[i]) - float(engine[i])), 2.0)
        expected -= weight * ratio * float(gains[i]) / 3
        slopes.append(-weight * ratio * float(gains[i]) / 3)
    assert result.loss.item() == pytest.approx(expected, rel=1e-6)
    result.loss.backward()
    assert new.grad is not None
    np.testing.assert_allclose(new.grad.numpy(), slopes, rtol=1e-6)
    stats = dict(zip(STAT_NAMES, result.stats.tolist(), strict=True))
    differences = (start - engine).tolist()
    assert stats["logprob_mismatch"] == pytest.approx(np.mean(np.abs(differences)), rel=1e-6)
    assert stats["logprob_mismatch_kl"] == pytest.approx(
        np.mean([math.expm1(d) - d for d in differences]), rel=1e-5
    )
    assert stats["truncated_fraction"] == pytest.approx(1 / 3)
    assert result.mismatch_max.item() == pytest.approx(2.0)


def test_without_a_start_the_current_policy_is_it() -> None:
    new = torch.tensor([-1.0, -2.0], requires_grad=True)
    settings = PolicyGradient(0.2, 0.2, weight_name="truncated", weight=truncated)
    arguments = (
        torch.zeros(2),
        torch.tensor([-1.5, -1.0]),
        torch.tensor([1.0, 1.0]),
        torch.ones(2),
        settings,
    )
    given = policy_gradient(new, *arguments, start=new.detach())
    assert torch.equal(policy_gradient(new, *arguments).loss, given.loss)


def test_constant_mean_counts_every_token_alike() -> None:
    weights = token_weights([3, 5], "constant", 8, 2, 16)
    np.testing.assert_allclose(weights, np.full(8, 1 / 32, np.float32))


def engine_of(stepper: Stepper, plan: TrainingPlan, shift: float = 0.0) -> Columns:
    """Columns whose log-probs are the policy's own, plus shift."""
    columns = columns_of(plan)
    columns.logprobs[:] = (stepper.logprobs(columns, TEMPERATURE) + shift) * columns.loss_mask
    return columns


def test_the_start_of_a_batch_is_what_the_policy_says_of_every_trained_token(
    group: Group, model: Path
) -> None:
    stepper = stepper_for(group, model, configuration())
    plan = plan_of(items_of(1, 9), 1)
    start = stepper.logprobs(columns_of(plan), TEMPERATURE)
    at = 0
    for item in plan.ranks[0]:
        columns = sequence(item.ticket_id, item.total_tokens)
        tokens = torch.from_numpy(columns["tokens"]).long()
        with torch.no_grad():
            hidden = stepper.policy.decoder(tokens, torch.arange(len(tokens)), [len(tokens)])
            distribution = torch.log_softmax(stepper.policy.decoder.logits(hidden), -1)
        for t in range(len(tokens)):
            expected = float(distribution[t - 1, tokens[t]]) if columns["loss_mask"][t] else 0.0
            assert start[at + t] == pytest.approx(expected, abs=1e-5)
        at += len(tokens)
    stepper.policy.reshard()


def test_on_policy_truncated_and_behaviour_are_one(group: Group, model: Path) -> None:
    outcomes = []
    for importance in ("behaviour", "truncated"):
        stepper = stepper_for(group, model, configuration(importance=importance, passes=2, minibatches=2))
        plan = plan_of(items_of(1, 12), 1)
        metrics = stepper.train(plan, engine_of(stepper, plan))
        assert metrics["logprob_mismatch_max"] < 1e-5 and metrics["truncated_fraction"] == 0.0
        outcomes.append(gathered(stepper))
    for name, tensor in outcomes[0].items():
        torch.testing.assert_close(outcomes[1][name], tensor, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("minibatches", [1, 3])
def test_a_mismatch_is_measured_and_truncated(group: Group, model: Path, minibatches: int) -> None:
    """The engine says e^-1 of what the trainer does: every weight is the cap, every gradient as large."""
    config = configuration(
        importance="truncated", importance_cap=1.5, entropy_coefficient=0.0, minibatches=minibatches
    )
    plan = plan_of(items_of(1, 12), 1)
    metrics = {}
    for shift in (0.0, -1.0):
        stepper = stepper_for(group, model, config)
        metrics[shift] = stepper.train(plan, engine_of(stepper, plan, shift))
    off = metrics[-1.0]
    assert off["logprob_mismatch"] == pytest.approx(1.0, abs=1e-5)
    assert off["logprob_mismatch_max"] == pytest.approx(1.0, abs=1e-4)
    assert off["logprob_mismatch_kl"] == pytest.approx(math.e - 2, abs=1e-4)
    assert off["truncated_fraction"] == pytest.approx(1.0)
    if minibatches == 1:
        assert off["grad_norm"] == pytest.approx(1.5 * metrics[0.0]["grad_norm"], rel=1e-4)


def test_the_kl_is_measured_against_the_columns_of_the_reference_stage(group: Group, model: Path) -> None:
    stepper = stepper_for(group, model, configuration(kl_coefficient=0.5))
    items = [replace(item, columns=(RoleColumn("reference", ("reference/1",)),)) for item in items_of(1, 8)]
    plan = plan_of(items, 1)
    columns = Columns()
    columns.take(plan.ranks[0])
    for i, item in enumerate(plan.ranks[0]):
        for name, column in columns.of(i).items():
            if name != "reference":
                column[:] = sequence(item.ticket_id, item.total_tokens)[name]
    columns.roles["reference"][:] = stepper.logprobs(columns, TEMPERATURE)
    assert stepper.train(plan, columns)["kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert stepper.train(plan, columns)["kl_reference"] > 1e-5


def test_a_batch_without_wanted_reference_logprobs_is_refused(group: Group, model: Path) -> None:
    with pytest.raises(TrainerError, match="without reference log-probs"):
        train(stepper_for(group, model, configuration(kl_coefficient=0.5)), 1)


def _gradient(group: Group, model: Path, **trainer: object) -> dict[str, torch.Tensor]:
    """Gradient of one batch: its first moment after a step is (1 - beta1) times the gradient."""
    stepper = stepper_for(group, model, configuration(max_grad_norm=1e9, **trainer))
    train(stepper, 1, count=40)
    return {name: first for name, (first, _) in stepper.optimizer.moments.items()}


@pytest.mark.parametrize("loss_mean", ["token", "sequence", "constant"])
@pytest.mark.parametrize(
    "changes",
    [{"microbatch_tokens": 64}, {"microbatch_tokens": 200}, {"activation_checkpointing": True}],
    ids=["64", "200", "checkpointed"],
)
def test_accumulated_gradients_are_those_of_the_batch_in_one_piece(
    group: Group, model: Path, loss_mean: str, changes: dict
) -> None:
    whole = _gradient(group, model, loss_mean=loss_mean, microbatch_tokens=1 << 20)
    parts = _gradient(group, model, loss_mean=loss_mean, **{"microbatch_tokens": 1 << 20, **changes})
    for name, tensor in whole.items():
        torch.testing.assert_close(
            parts[name], tensor, atol=1e-5 * float(tensor.abs().max()) + 1e-9, rtol=1e-5
        )
