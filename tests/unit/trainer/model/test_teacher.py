"""The teacher's part in losses, against formulas and exact gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from services.trainer.model.losses import STAT_NAMES, PolicyGradient, policy_gradient
from services.trainer.model.teacher import NO_TEACHER, TeacherTerm

N, VOCABULARY = 40, 5


def columns(seed: int = 0) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed)
    logprobs = (-torch.rand(N, generator=g) * 3).requires_grad_()
    return {
        "logprobs": logprobs,
        "entropy": torch.zeros(N),
        "behaviour": (logprobs + 0.05 * torch.randn(N, generator=g)).detach(),
        "advantages": torch.randn(N, generator=g),
        "weights": torch.full((N,), 1.0 / N),
    }


def gradient(term: TeacherTerm, teacher: torch.Tensor | None) -> tuple[torch.Tensor, float]:
    """(of log-probs, mean KL to the teacher) without clips."""
    data = columns()
    settings = PolicyGradient(0.999, 1e9, teacher=term)
    made = policy_gradient(**data, settings=settings, teacher=teacher)
    made.loss.backward()
    grad = data["logprobs"].grad
    assert grad is not None
    return grad, float(made.stats[STAT_NAMES.index("kl_teacher")])


@pytest.mark.parametrize("form", ["advantage", "loss"])
@pytest.mark.parametrize("rewards", [True, False])
def test_the_gradient_is_that_of_the_formula(form: str, rewards: bool) -> None:
    teacher = columns(1)["behaviour"]
    found, kl = gradient(TeacherTerm(0.7, form, rewards), teacher)
    data = {name: column.detach().double() for name, column in columns().items()}
    teacher, new = teacher.double(), data["logprobs"].requires_grad_()
    ratio = (new - data["behaviour"]).exp()
    advantages = data["advantages"] if rewards else torch.zeros(N)
    difference = teacher - new
    estimate = difference.exp() - difference - 1
    if form == "advantage":
        loss = -(ratio * (advantages + 0.7 * difference.detach())).mean()
    else:
        loss = (-ratio * advantages + 0.7 * estimate).mean()
    loss.backward()
    torch.testing.assert_close(found.double(), new.grad, rtol=1e-5, atol=1e-8)
    assert kl == pytest.approx(float(estimate.mean().detach()), rel=1e-5)


def test_without_a_weight_the_teacher_changes_nothing() -> None:
    plain, none = gradient(NO_TEACHER, None)
    for term in (TeacherTerm(0.0, "advantage"), TeacherTerm(0.0, "loss")):
        found, kl = gradient(term, columns(1)["behaviour"])
        assert torch.equal(found, plain) and kl > 0.1
    assert none == 0.0


@pytest.mark.parametrize("form", ["advantage", "loss"])
def test_a_teacher_that_counts_must_be_there(form: str) -> None:
    with pytest.raises(ValueError, match="needs its log-probs"):
        gradient(TeacherTerm(1.0, form), None)


@pytest.mark.parametrize("form", ["advantage", "loss"])
def test_each_form_is_the_gradient_of_a_kl_in_expectation(form: str) -> None:
    """Over all tokens, by their probabilities: from policy to teacher, or from teacher to policy."""
    g = torch.Generator().manual_seed(3)
    logits = torch.randn(VOCABULARY, generator=g).requires_grad_()
    teacher = torch.log_softmax(torch.randn(VOCABULARY, generator=g), 0)
    policy = torch.log_softmax(logits, 0)
    settings = PolicyGradient(0.999, 1e9, teacher=TeacherTerm(1.0, form, rewards=False))
    zeros = torch.zeros(VOCABULARY)
    made = policy_gradient(
        policy, zeros, policy.detach(), zeros, policy.detach().exp(), settings, teacher=teacher
    )
    (found,) = torch.autograd.grad(made.loss, logits, retain_graph=True)
    if form == "advantage":
        kl = (policy.exp() * (policy - teacher)).sum()
    else:
        kl = (teacher.exp() * (teacher - policy)).sum()
    (expected,) = torch.autograd.grad(kl, logits)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
