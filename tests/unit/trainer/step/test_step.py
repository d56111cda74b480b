"""The optimizer step on one rank: against plain autograd over single sequences, and its guards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from earl.errors import TrainerError
from earl.models.module import Decoder
from earl.models.spec import load_spec
from earl.models.weights import load_decoder
from services.trainer.model.optimizer import decay, ramp
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
    train,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


group, model = alone, tiny_model


def _reference_step(model: Path, plan, loss_mean: str, config) -> dict[str, torch.Tensor]:
    """Parameters after one AdamW step of torch's own on losses of single sequences, token by token."""
    decoder = Decoder(load_spec(model))
    load_decoder(decoder, model)
    losses, counts = [], []
    for item in plan.ranks[0]:
        columns = sequence(item.ticket_id, item.total_tokens)
        tokens = torch.from_numpy(columns["tokens"]).long()
        hidden = decoder.forward_packed(tokens, torch.arange(len(tokens)), [len(tokens)])
        distribution = torch.log_softmax(decoder.logits(hidden), -1)
        per_token = []
        turn_ends = np.flatnonzero(np.diff(columns["loss_mask"].astype(int), append=0) < 0)
        for t in np.flatnonzero(columns["loss_mask"]):
            turns_after = np.count_nonzero(turn_ends >= t) - 1
            advantage = item.advantage * config.trainer.turn_discount**turns_after
            logprob = distribution[t - 1, tokens[t]]
            entropy = -(distribution[t - 1].exp() * distribution[t - 1]).sum()
            ratio = torch.exp(logprob - float(columns["logprobs"][t]))
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            per_token.append(-gain - config.trainer.entropy_coefficient * entropy)
        losses.append(torch.stack(per_token))
        counts.append(len(per_token))
    if loss_mean == "token":
        loss = torch.cat(losses).mean()
    else:
        loss = torch.stack([one.mean() for one in losses]).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), config.trainer.max_grad_norm)
    torch.optim.AdamW(
        decoder.parameters(),
        lr=config.trainer.lr,
        betas=config.trainer.betas,
        eps=config.trainer.epsilon,
        weight_decay=0.0,
    ).step()
    return {name: p.detach() for name, p in decoder.named_parameters()}


@pytest.mark.parametrize("loss_mean", ["token", "sequence"])
@pytest.mark.parametrize("microbatch_tokens", [64, 4096])
def test_a_step_equals_autograd_over_single_sequences(
    group: Group, model: Path, loss_mean: str, microbatch_tokens: int
) -> None:
    config = configuration(loss_mean=loss_mean, microbatch_tokens=microbatch_tokens, max_grad_norm=0.05)
    stepper = stepper_for(group, model, config)
    plan = plan_of(items_of(1, 9), 1)
    metrics = stepper.train(plan, columns_of(plan))
    assert metrics["grad_norm"] > 0.05  # so that clipping took part
    for name, expected in _reference_step(model, plan, loss_mean, config).items():
        torch.testing.assert_close(gathered(stepper)[name], expected, atol=2e-5, rtol=1e-4, msg=name)


def test_a_large_epsilon_makes_an_update_follow_the_gradients_size(group: Group, model: Path) -> None:
    config = configuration(epsilon=1e-2)
    stepper = stepper_for(group, model, config)
    plan = plan_of(items_of(1, 9), 1)
    stepper.train(plan, columns_of(plan))
    for name, expected in _reference_step(model, plan, "token", config).items():
        torch.testing.assert_close(gathered(stepper)[name], expected, atol=2e-6, rtol=1e-4, msg=name)


def test_a_step_discounts_the_advantage_of_earlier_turns(group: Group, model: Path) -> None:
    config = configuration(turn_discount=0.6, entropy_coefficient=0.01, max_grad_norm=0.05)
    stepper = stepper_for(group, model, config)
    plan = plan_of(items_of(1, 9), 1)
    stepper.train(plan, columns_of(plan))
    for name, expected in _reference_step(model, plan, "token", config).items():
        torch.testing.assert_close(gathered(stepper)[name], expected, atol=2e-5, rtol=1e-4, msg=name)


def test_minibatches_and_passes_count_as_updates(group: Group, model: Path) -> None:
    stepper = stepper_for(group, model, configuration(minibatches=3, passes=2))
    metrics = train(stepper, 1)
    assert stepper.optimizer.updates == 6
    assert metrics["clip_fraction"] >= 0.0 and metrics["entropy"] > 0.0


def test_each_micro_batch_is_progress(group: Group, model: Path) -> None:
    stepper = stepper_for(group, model, configuration(minibatches=2, passes=2, microbatch_tokens=64))
    plan = plan_of(items_of(1, 9), 1)
    parts: list[float] = []
    stepper.train(plan, columns_of(plan), parts.append)
    assert len(parts) > 4 and parts == [pytest.approx(n / len(parts)) for n in range(1, len(parts) + 1)]


def test_first_of_phase_starts_the_moments_anew(group: Group, model: Path) -> None:
    stepper = stepper_for(group, model, configuration())
    train(stepper, 1, objective="imitate")
    train(stepper, 2, objective="imitate")
    assert stepper.optimizer.updates == 2
    train(stepper, 3, first_of_phase=True)
    assert stepper.optimizer.updates == 1


def test_imitation_lowers_its_loss(group: Group, model: Path) -> None:
    stepper = stepper_for(group, model, configuration())
    plan = plan_of(items_of(1, 20), 1, objective="imitate")
    losses = [
        stepper.train(replace(plan, batch_id=i, first_of_phase=i == 0), columns_of(plan))["loss"]
        for i in range(15)
    ]
    assert losses[-1] < losses[0] - 0.05


def test_a_loss_that_is_not_finite_changes_nothing(group: Group, model: Path) -> None:
    stepper = stepper_for(group, model, configuration())
    before = gathered(stepper)
    items = [replace(item, advantage=float("nan")) for item in items_of(1, 4)]
    plan = plan_of(items, 1, batch_id=7)
    with pytest.raises(TrainerError, match="batch 7 of version 7: loss nan"):
        stepper.train(plan, columns_of(plan))
    for name, tensor in gathered(stepper).items():
        assert torch.equal(tensor, before[name])


def test_a_batch_without_trained_tokens_changes_nothing(group: Group, model: Path) -> None:
    stepper = stepper_for(group, model, configuration())
    before = gathered(stepper)
    plan = plan_of(items_of(1, 3), 1)
    columns = columns_of(plan)
    columns.loss_mask[:] = 0
    assert stepper.train(plan, columns)["loss"] == 0.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in gathered(stepper).items())


def test_a_batch_is_left_once_the_policy_has_moved_too_far(group: Group, model: Path) -> None:
    bounded = stepper_for(group, model, configuration(passes=4, lr=0.5, kl_limit=0.05))
    metrics = train(bounded, 1)
    assert metrics["kl_stopped"] == 1.0
    assert 0 < bounded.optimizer.updates < 4
    free = stepper_for(group, model, configuration(passes=4, lr=0.5))
    assert train(free, 1)["kl_stopped"] == 0.0
    assert free.optimizer.updates == 4


def test_factors_ramp_up_and_decay() -> None:
    assert [ramp(updates, 4) for updates in (0, 2, 9)] == [0.25, 0.75, 1.0]
    assert ramp(0, 0) == 1.0
    assert [decay(progress, 0.1) for progress in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.55, 0.1])


def test_the_entropy_bonus_decays_with_the_phase(group: Group, model: Path) -> None:
    late = [
        train(stepper_for(group, model, configuration(entropy_final_fraction=final)), 1, progress=1.0)["loss"]
        for final in (1.0, 0.0)
    ]
    assert late[0] < late[1]
