"""Credit fragments against their definitions, term by term; what a bad one says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.errors import FragmentError
from earl.fragments.credit import (
    CREDITS,
    CreditedTokens,
    TokenCredit,
    credit_of,
    discounted,
    gae,
    of_values,
)

UNIT = st.floats(0.1, 1.0)


@st.composite
def trajectories(draw: st.DrawFn) -> CreditedTokens:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    count = sum(sizes)
    numbers = st.lists(st.floats(-3, 3, width=32), min_size=count, max_size=count)
    return CreditedTokens(
        rewards=np.array(draw(numbers), np.float32),
        turns=np.repeat(np.arange(len(sizes)), sizes),
        values=np.array(draw(numbers), np.float32),
        turn_discount=draw(UNIT),
        token_discount=draw(UNIT),
        trace_decay=draw(st.floats(0.0, 1.0)),
    )


def between(tokens: CreditedTokens, first: int, last: int) -> float:
    """The discount of what happens at token `last`, seen from token `first`."""
    turns = int(tokens.turns[last] - tokens.turns[first])
    return tokens.token_discount ** (last - first) * tokens.turn_discount**turns


@given(trajectories())
def test_discounted_is_the_sum_of_what_follows(tokens: CreditedTokens) -> None:
    count = len(tokens.rewards)
    expected = [
        sum(between(tokens, first, last) * float(tokens.rewards[last]) for last in range(first, count))
        for first in range(count)
    ]
    np.testing.assert_allclose(discounted(tokens).advantages, expected, rtol=1e-5, atol=1e-5)


@given(trajectories())
def test_gae_is_the_discounted_sum_of_the_temporal_differences(tokens: CreditedTokens) -> None:
    assert tokens.values is not None
    count = len(tokens.rewards)
    values = [*map(float, tokens.values), 0.0]
    deltas = []
    for t in range(count):
        step = between(tokens, t, t + 1) if t + 1 < count else 1.0
        deltas.append(float(tokens.rewards[t]) + step * values[t + 1] - values[t])
    expected = [
        sum(
            tokens.trace_decay ** (last - t) * between(tokens, t, last) * deltas[last]
            for last in range(t, count)
        )
        for t in range(count)
    ]
    made = gae(tokens)
    np.testing.assert_allclose(made.advantages, expected, rtol=1e-4, atol=1e-4)
    assert made.returns is not None
    np.testing.assert_allclose(made.returns - tokens.values, made.advantages, rtol=1e-4, atol=1e-4)


def test_without_discounts_every_token_has_the_whole_advantage() -> None:
    rewards = np.array([0, 0, 0, 0.7], np.float32)
    made = discounted(CreditedTokens(rewards, np.array([0, 0, 1, 1])))
    np.testing.assert_array_equal(made.advantages, np.full(4, 0.7, np.float32))
    halved = discounted(CreditedTokens(rewards, np.array([0, 1, 1, 2]), turn_discount=0.5))
    np.testing.assert_array_equal(halved.advantages, np.array([0.175, 0.35, 0.35, 0.7], np.float32))


def test_a_critic_that_is_right_leaves_no_advantage() -> None:
    tokens = CreditedTokens(
        np.array([0, 0, 1], np.float32),
        np.zeros(3, np.int64),
        np.array([0.81, 0.9, 1], np.float32),
        token_discount=0.9,
    )
    np.testing.assert_allclose(gae(tokens).advantages, 0.0, atol=1e-6)


ONES = CreditedTokens(np.ones(3, np.float32), np.zeros(3, np.int64), np.zeros(3, np.float32))


@pytest.mark.parametrize(
    "fragment, said",
    [
        (lambda t: TokenCredit(t.rewards[:1]), r"returned float32\[1\] as advantages"),
        (lambda t: TokenCredit(t.rewards.astype(float)), r"returned float64\[3\] as advantages"),
        (lambda t: TokenCredit(t.rewards.tolist()), r"returned \[1.0, 1.0, 1.0\] as advantages"),
        (lambda t: TokenCredit(t.rewards * np.nan), "advantages that are not finite"),
        (lambda t: t.missing, "AttributeError"),
        (of_values(lambda t: TokenCredit(t.rewards)), "returned None as returns"),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_the_fragment(
    fragment: Callable[[CreditedTokens], TokenCredit], said: str
) -> None:
    with pytest.raises(FragmentError, match=said) as raised:
        credit_of("mine:bad", fragment, ONES)
    assert "trainer.credit = 'mine:bad'" in str(raised.value)


def test_a_fragment_of_values_says_when_they_are_missing() -> None:
    bare = CreditedTokens(np.ones(3, np.float32), np.zeros(3, np.int64))
    with pytest.raises(FragmentError, match="values are missing"):
        credit_of("gae", CREDITS["gae"], bare)
