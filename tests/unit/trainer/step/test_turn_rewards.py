"""Rewards of single turns: credit against sums written out, a step against autograd, what is refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from earl.errors import TrainerError
from earl.fragments.credit import CREDITS
from earl.models.module import Decoder
from earl.models.spec import load_spec
from earl.models.weights import load_decoder
from services.trainer.ranks.process_group import Group
from services.trainer.step.batch import Columns
from services.trainer.step.credit import credit_columns
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
TURN, TOKEN, DECAY = 0.8, 0.95, 0.7
SETTINGS = {"turn_rewards": True, "turn_discount": TURN, "token_discount": TOKEN, "gae_lambda": DECAY}
ITEMS = items_of(1, 9)


def earned(ticket: int, length: int, advantage: float) -> tuple[list[int], list[float], list[int]]:
    """(positions of the trained tokens, the reward of each, the turn of each), written out."""
    columns = sequence(ticket, length)
    positions = [position for position in range(length) if columns["loss_mask"][position]]
    turns = [0]
    for before, position in pairwise(positions):
        turns.append(turns[-1] + (position > before + 1))
    rewards = [float(columns["rewards"][position]) for position in positions]
    rewards[-1] += advantage - sum(rewards)
    return positions, rewards, turns


def discount(turns: list[int], token: int) -> float:
    """Between a token and the next."""
    return TOKEN * (TURN if turns[token + 1] > turns[token] else 1.0)


def discounted(rewards: list[float], turns: list[int]) -> list[float]:
    advantages = []
    for first in range(len(rewards)):
        total, factor = 0.0, 1.0
        for token in range(first, len(rewards)):
            total += factor * rewards[token]
            factor *= discount(turns, token) if token + 1 < len(rewards) else 1.0
        advantages.append(total)
    return advantages


def gae(rewards: list[float], turns: list[int], values: list[float]) -> list[float]:
    advantages = []
    for first in range(len(rewards)):
        total, factor = 0.0, 1.0
        for token in range(first, len(rewards)):
            last = token + 1 == len(rewards)
            step = 1.0 if last else discount(turns, token)
            total += factor * (rewards[token] + (0.0 if last else step * values[token + 1]) - values[token])
            factor *= step * DECAY
        advantages.append(total)
    return advantages


@pytest.mark.parametrize("credit", ["discounted", "gae"])
def test_credit_is_made_of_what_each_turn_earned(credit: str) -> None:
    columns = columns_of(plan_of(ITEMS, 1), turn_rewards=True)
    values = np.random.default_rng(3).normal(size=int(columns.offsets[-1])).astype(np.float32)
    with_critic = credit == "gae"
    trainer = configuration(credit=credit, **SETTINGS).trainer
    made = credit_columns(columns, CREDITS[credit], trainer, values if with_critic else None)
    several = 0
    for index, item in enumerate(ITEMS):
        start = int(columns.offsets[index])
        positions, rewards, turns = earned(item.ticket_id, item.total_tokens, item.advantage)
        several += turns[-1] > 0
        assert sum(rewards) == pytest.approx(item.advantage)
        places = [start + position for position in positions]
        before = [float(values[place]) for place in places]
        expected = gae(rewards, turns, before) if with_critic else discounted(rewards, turns)
        np.testing.assert_allclose(made.advantages[places], expected, rtol=1e-5, atol=1e-5)
        if with_critic:
            assert made.returns is not None
            returns = np.add(expected, before)
            np.testing.assert_allclose(made.returns[places], returns, rtol=1e-5, atol=1e-5)
    assert several > 3


def test_rewards_that_are_all_at_the_end_are_those_of_the_episode() -> None:
    plan = plan_of(ITEMS, 1)
    columns = columns_of(plan, turn_rewards=True)
    assert columns.rewards is not None
    columns.rewards[:] = 0.0
    trainer = configuration(**SETTINGS).trainer
    made = credit_columns(columns, CREDITS["discounted"], trainer, None)
    plain = credit_columns(columns_of(plan), CREDITS["discounted"], trainer, None)
    np.testing.assert_array_equal(made.advantages, plain.advantages)


def test_a_step_equals_autograd_over_single_trajectories(group: Group, model: Path) -> None:
    """A step of plain gradient descent: AdamW with a huge epsilon."""
    plain = {"epsilon": 1e3, "lr": 1e3, "max_grad_norm": 1e9, "entropy_coefficient": 0.0}
    stepper = stepper_for(group, model, configuration(**SETTINGS, **plain))
    before = gathered(stepper)
    plan = plan_of(ITEMS, 1)
    stepper.train(plan, columns_of(plan, turn_rewards=True))
    decoder = Decoder(load_spec(model))
    load_decoder(decoder, model)
    gains = []
    for item in ITEMS:
        columns = sequence(item.ticket_id, item.total_tokens)
        positions, rewards, turns = earned(item.ticket_id, item.total_tokens, item.advantage)
        tokens = torch.from_numpy(columns["tokens"]).long()
        hidden = decoder.forward_packed(tokens, torch.arange(len(tokens)), [len(tokens)])
        trained = torch.tensor(positions)
        new = torch.log_softmax(decoder.logits(hidden), -1)[trained - 1, tokens[trained]]
        ratio = (new - torch.from_numpy(columns["logprobs"][positions])).exp()
        advantages = torch.tensor(discounted(rewards, turns), dtype=torch.float32)
        gains.append(torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages))
    (-torch.cat(gains).mean()).backward()
    after = gathered(stepper)
    for name, parameter in decoder.named_parameters():
        if parameter.grad is not None:
            moved = before[name] - after[name]
            torch.testing.assert_close(moved, parameter.grad, atol=2e-5, rtol=1e-3, msg=name)


def test_a_reward_that_is_not_finite_is_refused() -> None:
    columns = columns_of(plan_of(ITEMS, 1), turn_rewards=True)
    assert columns.rewards is not None
    columns.rewards[3] = np.nan
    with pytest.raises(TrainerError, match=f"{ITEMS[0].key}: position 3"):
        columns.validate(4)


def test_runs_without_them_read_no_such_column() -> None:
    plain, paid = Columns(), Columns(turn_rewards=True)
    for columns in (plain, paid):
        columns.take(ITEMS)
    assert list(plain.sampled) == ["tokens", "loss_mask", "logprobs"] and plain.rewards is None
    assert list(paid.sampled) == [*plain.sampled, "rewards"] == list(paid.of(0))
