"""The KL to the reference policy on tokens of protected environments alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from earl.errors import TrainerError
from services.trainer.model.losses import STAT_NAMES, PolicyGradient, policy_gradient
from services.trainer.ranks.process_group import Group
from services.trainer.step.batch import EMPTY, Columns
from services.trainer.step.plan import ReplicaSequence, RoleColumn, TrainingPlan
from tests.support.policy import (
    alone,
    columns_of,
    configuration,
    items_of,
    plan_of,
    sequence,
    stepper_for,
    tiny_model,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
group, model = alone, tiny_model
WEIGHT = 0.5
KL = STAT_NAMES.index("kl_reference")


# --- the objective --------------------------------------------------------------------------


def objective(
    protected: list[bool] | None, coefficient: float = 0.0, unprotected_reference: float | None = None
) -> tuple[float, torch.Tensor, float]:
    """(loss, gradient by log-prob, mean KL); protected None: without the argument."""
    count = 12
    generator = torch.Generator().manual_seed(5)
    logprobs = (-3 * torch.rand(count, generator=generator)).requires_grad_()
    behaviour = logprobs.detach() + 0.1 * torch.randn(count, generator=generator)
    advantages, reference = torch.randn(2, count, generator=generator)
    reference = -3 * reference.abs()
    weights = torch.full((count,), 1 / count)
    extra = None
    if protected is not None:
        mask = torch.tensor(protected)
        extra = mask.float() * WEIGHT
        if unprotected_reference is not None:
            reference = torch.where(mask, reference, unprotected_reference)
    settings = PolicyGradient(0.2, 0.2, kl_coefficient=coefficient)
    result = policy_gradient(
        logprobs, torch.zeros(count), behaviour, advantages, weights, settings,
        reference=reference, protected_kl=extra,
    )  # fmt: skip
    result.loss.backward()
    assert logprobs.grad is not None
    return float(result.loss.detach()), logprobs.grad, float(result.stats[KL])


def test_with_all_tokens_protected_it_is_the_kl_of_all() -> None:
    loss, gradient, mean = objective([True] * 12)
    full_loss, full_gradient, full_mean = objective(None, WEIGHT)
    assert (loss, mean) == (full_loss, full_mean) and torch.equal(gradient, full_gradient)


def test_without_a_protected_token_it_is_exactly_nothing() -> None:
    loss, gradient, mean = objective([False] * 12)
    plain_loss, plain_gradient, _ = objective(None)
    assert loss == plain_loss and mean == 0.0 and torch.equal(gradient, plain_gradient)


@given(st.lists(st.booleans(), min_size=12, max_size=12), st.sampled_from([None, 0.0, -500.0]))
def test_only_protected_tokens_have_it(protected: list[bool], reference: float | None) -> None:
    """Whatever stands where a reference was not asked for, which is no log-prob at all."""
    mask = torch.tensor(protected)
    _, gradient, _ = objective(protected, unprotected_reference=reference)
    _, plain, _ = objective(None)
    _, full, _ = objective(None, WEIGHT)
    assert torch.equal(gradient[~mask], plain[~mask])
    assert torch.equal(gradient[mask], full[mask])


def test_it_is_added_to_the_kl_of_all_tokens() -> None:
    half = [True] * 6 + [False] * 6
    _, gradient, _ = objective(half, coefficient=0.25)
    _, all_tokens, _ = objective(None, 0.25)
    _, both, _ = objective(None, 0.25 + WEIGHT)
    torch.testing.assert_close(gradient[:6], both[:6])
    assert torch.equal(gradient[6:], all_tokens[6:])


# --- a step ---------------------------------------------------------------------------------


def gradient_of(
    group: Group, model: Path, is_protected: Callable[[int], bool], **trainer: object
) -> tuple[dict[str, torch.Tensor], float]:
    """(first moment after one step, mean KL); the reference log-probs are there where a KL is wanted."""
    stepper = stepper_for(group, model, configuration(max_grad_norm=1e9, **trainer))
    everyone = bool(trainer.get("kl_coefficient"))

    def planned(place: int, item: ReplicaSequence) -> ReplicaSequence:
        protected = is_protected(place) and bool(trainer.get("protected_kl"))
        columns = (RoleColumn("reference", ("reference/1",)),) if everyone or protected else ()
        return replace(item, columns=columns, protected_kl=WEIGHT if protected else 0.0)

    plan = plan_of([planned(place, item) for place, item in enumerate(items_of(1, 12))], 1)
    columns = filled(plan)
    metrics = stepper.train(plan, columns)
    return {name: first for name, (first, _) in stepper.optimizer.moments.items()}, metrics["kl_reference"]


def filled(plan: TrainingPlan) -> Columns:
    """The columns of a plan, with reference log-probs as far as they are wanted."""
    columns = Columns()
    columns.take(plan.ranks[0])
    for i, item in enumerate(columns.items):
        sampled = sequence(item.ticket_id, item.total_tokens)
        sampled["reference"] = (sampled["logprobs"] - 0.7) * sampled["loss_mask"]
        for name, into in columns.of(i).items():
            into[:] = sampled[name]
    return columns


def test_a_step_with_every_sequence_protected_is_one_with_the_kl_of_all(group: Group, model: Path) -> None:
    protected, kl = gradient_of(group, model, lambda _: True, protected_kl=WEIGHT)
    everyone, full_kl = gradient_of(group, model, lambda _: False, kl_coefficient=WEIGHT)
    assert kl == full_kl > 0.01
    for name, moment in everyone.items():
        assert torch.equal(protected[name], moment), name


def test_a_step_without_a_protected_sequence_is_one_without_a_kl(group: Group, model: Path) -> None:
    protected, kl = gradient_of(group, model, lambda _: False, protected_kl=WEIGHT)
    plain, _ = gradient_of(group, model, lambda _: False)
    assert kl == 0.0
    for name, moment in plain.items():
        assert torch.equal(protected[name], moment), name


def test_the_parts_of_a_step_add_up(group: Group, model: Path) -> None:
    """The KL of the even sequences and that of the odd ones are that of all: packing mixes no weights."""
    plain, _ = gradient_of(group, model, lambda _: False)
    even, even_kl = gradient_of(group, model, lambda place: place % 2 == 0, protected_kl=WEIGHT)
    odd, odd_kl = gradient_of(group, model, lambda place: place % 2 == 1, protected_kl=WEIGHT)
    everyone, kl = gradient_of(group, model, lambda _: True, protected_kl=WEIGHT)
    assert even_kl > 0 and odd_kl > 0 and even_kl + odd_kl == pytest.approx(kl, rel=1e-5)
    for name, moment in plain.items():
        parts = (even[name] - moment) + (odd[name] - moment)
        torch.testing.assert_close(parts, everyone[name] - moment, atol=1e-6, rtol=1e-4)


def test_a_protected_sequence_without_reference_logprobs_is_refused(group: Group, model: Path) -> None:
    stepper = stepper_for(group, model, configuration(protected_kl=WEIGHT))
    plan = plan_of([replace(item, protected_kl=WEIGHT) for item in items_of(1, 4)], 1)
    with pytest.raises(TrainerError, match=r"without reference log-probs.*protected_kl 0\.5"):
        stepper.train(plan, columns_of(plan))


@pytest.mark.parametrize("protected_kl", [None, torch.zeros(1)])
def test_a_pass_that_counts_nothing_is_finite_however_unlikely_its_token_is(
    protected_kl: torch.Tensor | None,
) -> None:
    logprobs = torch.full((1,), -200.0, requires_grad=True)
    nothing = policy_gradient(
        logprobs,
        torch.zeros(1),
        torch.from_numpy(EMPTY.behaviour),
        torch.zeros(1),
        torch.from_numpy(EMPTY.weights),
        PolicyGradient(0.2, 0.2, kl_coefficient=WEIGHT),
        reference=torch.from_numpy(EMPTY.roles["reference"]),
        protected_kl=protected_kl,
    )
    nothing.loss.backward()
    assert nothing.loss.item() == 0 and logprobs.grad is not None and logprobs.grad.item() == 0
    assert all(value == 0 for value in nothing.stats.tolist())
