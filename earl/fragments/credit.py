"""Credit fragments: from a trajectory's reward or advantage to the advantage of each trained token. Pure.

    def mine(tokens: CreditedTokens) -> TokenCredit:
        share = tokens.rewards.sum() / len(tokens.rewards)
        return TokenCredit(np.full(len(tokens.rewards), share, np.float32))

A fragment gets the trained tokens of one trajectory, whole, whatever ranks compute it: tokens that the
environment wrote are not among them. One that needs a critic says so by `@of_values`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from earl.errors import FragmentError


@dataclass(frozen=True, slots=True)
class CreditedTokens:
    """The n trained tokens of one trajectory, in order, at least one.

    rewards: float32[n]: what scheduler.advantage made of the trajectory's reward, at its last token; with
    trainer.turn_rewards what each turn earned, at its last token, and the rest at the trajectory's. With
    trainer.kl_estimator = "k1" less the weighted KL to the reference at each. turns: int64[n], the number of
    each token's turn, ascending from 0. values: float32[n], the critic's estimate, before each token, of
    the discounted rewards from it on; None unless the fragment is marked by `of_values`. turn_discount,
    token_discount: above 0 and at most 1. trace_decay: GAE's lambda, 0..1.
    """

    rewards: np.ndarray
    turns: np.ndarray
    values: np.ndarray | None = None
    turn_discount: float = 1.0
    token_discount: float = 1.0
    trace_decay: float = 0.95

    @property
    def discounts(self) -> np.ndarray:
        """float64[n]: between each token and the next: token_discount, times turn_discount where a turn ends;
        of the last token 1."""
        factors = np.full(len(self.rewards), self.token_discount)
        factors[-1] = 1.0
        factors[:-1][np.diff(self.turns) > 0] *= self.turn_discount
        return factors


@dataclass(frozen=True, slots=True)
class TokenCredit:
    """advantages: float32[n]. returns: float32[n], of what the critic is to learn; None without one."""

    advantages: np.ndarray
    returns: np.ndarray | None = None


CreditFragment = Callable[[CreditedTokens], TokenCredit]
Fragment = TypeVar("Fragment", bound=CreditFragment)


def of_values(fragment: Fragment) -> Fragment:
    """Marks a fragment that needs `values`: the trainer has a critic then, and `returns` train it."""
    fragment.needs_values = True  # type: ignore[attr-defined]
    return fragment


def needs_values(fragment: CreditFragment) -> bool:
    """Returns whether the fragment is marked by `of_values`."""
    return bool(getattr(fragment, "needs_values", False))


def discounted(tokens: CreditedTokens) -> TokenCredit:
    """A_t = r_t + d_t A_(t+1), with d the discounts: without any, every token has the whole advantage."""
    factors = tokens.discounts
    if (factors == 1.0).all():
        sums = np.cumsum(tokens.rewards[::-1].astype(np.float64))[::-1]
    else:
        sums = _backward_sums(tokens.rewards, factors)
    return TokenCredit(sums.astype(np.float32))


@of_values
def gae(tokens: CreditedTokens) -> TokenCredit:
    """A_t = delta_t + d_t lambda A_(t+1), delta_t = r_t + d_t V_(t+1) - V_t, V after the last token 0; and
    A_t + V_t for the critic to learn.

    Generalised advantage estimation, arXiv 1506.02438, Eq. 16, over trained tokens: an observation is no
    step.
    """
    if tokens.values is None:
        raise ValueError("values are missing")
    values, factors = tokens.values.astype(np.float64), tokens.discounts
    following = np.append(values[1:], 0.0)
    deltas = tokens.rewards + factors * following - values
    advantages = _backward_sums(deltas, factors * tokens.trace_decay)
    return TokenCredit(advantages.astype(np.float32), (advantages + values).astype(np.float32))


CREDITS: Mapping[str, CreditFragment] = {"discounted": discounted, "gae": gae}


def credit_of(name: str, fragment: CreditFragment, tokens: CreditedTokens) -> TokenCredit:
    """The fragment's credit, checked. Raises FragmentError that names the fragment and what is wrong."""
    try:
        made = fragment(tokens)
        columns: dict[str, object] = {"advantages": made.advantages}
        if needs_values(fragment):
            columns["returns"] = made.returns
    except Exception as error:
        raise FragmentError(
            f"trainer.credit = {name!r} failed: {type(error).__name__}: {error}", "correct the function"
        ) from error
    shape = tokens.rewards.shape
    for column, array in columns.items():
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != np.float32:
            got = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else repr(array)
            raise FragmentError(
                f"trainer.credit = {name!r} returned {got} as {column}", f"return float32{list(shape)}"
            )
        given = [column for column in (tokens.rewards, tokens.values) if column is not None]
        if not np.isfinite(array).all() and all(np.isfinite(column).all() for column in given):
            raise FragmentError(
                f"trainer.credit = {name!r} returned {column} that are not finite, for rewards whose sum is "
                f"{float(tokens.rewards.sum()):g}",
                "return a finite number for each token",
            )
    return made


def _backward_sums(terms: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """float64[n]: s_t = terms_t + factors_t s_(t+1), from the last on."""
    total, sums = 0.0, []
    for term, factor in zip(terms[::-1].tolist(), factors[::-1].tolist(), strict=True):
        total = term + factor * total
        sums.append(total)
    return np.array(sums[::-1])
