"""Advantages of EARL's fragments against numpy's formulas; a user's own; what a bad one says."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.config.load import load_run
from earl.errors import ConfigError, FragmentError
from earl.fragments.advantages import ADVANTAGES, GroupOutcomes, advantages_of
from earl.fragments.lookup import load_fragment
from services.scheduler.batches.batch_plan import split_batch
from services.scheduler.state.run import Batch
from services.scheduler.state.tickets import EpisodeEnding, EpisodeResult, Purpose, Ticket, TicketState
from tests.support.paths import ROOT

KEY = "scheduler.advantage"

rewards = st.floats(-100, 100).map(lambda reward: round(reward, 3))
groups_of_four = st.lists(
    st.lists(st.tuples(rewards, st.integers(0, 900)), min_size=4, max_size=4).map(
        lambda rows: GroupOutcomes(*(tuple(column) for column in zip(*rows, strict=True)))
    ),
    min_size=1,
    max_size=6,
)


def scaled(values: np.ndarray, deviation: np.ndarray | float) -> np.ndarray:
    return np.where(deviation < 1e-6, 0.0, values / (deviation + 1e-4))


def leave_one_out(each: np.ndarray, _: np.ndarray) -> np.ndarray:
    others = [np.delete(each, place, axis=1).mean(1) for place in range(each.shape[1])]
    return each - np.stack(others, axis=1)


def length_weighted(each: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    weights = np.where(tokens.sum(1, keepdims=True) > 0, tokens, 1)
    return each - np.average(each, axis=1, weights=weights)[:, None]


def of_batch(each: np.ndarray) -> np.ndarray:
    return scaled(each - each.mean(), each.std(ddof=1))


# Written in numpy, over float64[groups, members].
EXPECTED: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "grpo": lambda each, _: scaled(each - each.mean(1, keepdims=True), each.std(1, ddof=1, keepdims=True)),
    "mean": lambda each, _: each - each.mean(1, keepdims=True),
    "rloo": leave_one_out,
    "opo": length_weighted,
    "reinforce++": lambda each, _: of_batch(each),
    "reinforce++-baseline": lambda each, _: of_batch(each - each.mean(1, keepdims=True)),
    "reward": lambda each, _: each,
}


@pytest.mark.parametrize("name", list(ADVANTAGES))
@given(groups=groups_of_four)
@settings(max_examples=30)
def test_each_is_its_formula(name: str, groups: list[GroupOutcomes]) -> None:
    each = np.asarray([group.rewards for group in groups])
    tokens = np.asarray([group.trained_tokens for group in groups])
    made = advantages_of(name, ADVANTAGES[name], groups)
    np.testing.assert_allclose(made, EXPECTED[name](each, tokens), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in ADVANTAGES if name != "reward"])
def test_equal_rewards_single_members_and_no_groups_are_no_fault(name: str) -> None:
    alike = GroupOutcomes((0.1 + 0.2, 0.3, 0.3), (5, 6, 7))
    [values] = advantages_of(name, ADVANTAGES[name], [alike])
    assert values == pytest.approx([0, 0, 0], abs=1e-12)
    assert advantages_of(name, ADVANTAGES[name], [GroupOutcomes((1.0,), (3,))]) == [[0.0]]
    assert advantages_of(name, ADVANTAGES[name], []) == []


def test_groups_whose_rewards_are_equal_up_to_rounding_teach_nothing() -> None:
    assert ADVANTAGES["grpo"]([GroupOutcomes((0.1 + 0.2, 0.3, 0.3), (1, 1, 1))]) == [[0, 0, 0]]
    [[high, low]] = ADVANTAGES["grpo"]([GroupOutcomes((1, -1), (1, 1))])
    assert math.isclose(high, 1 / (math.sqrt(2) + 1e-4)) and low == -high


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package of the user's."""
    made = ModuleType("users_own")
    monkeypatch.setitem(sys.modules, "users_own", made)
    return made


def batch_of(rewards: Sequence[float]) -> tuple[Batch, dict[int, Ticket]]:
    tickets = {
        number: Ticket(
            id=number, group=1, purpose=Purpose.TRAIN, index=0, env_seed=1, sample_seed=1, min_version=1,
            temperature=1.0, state=TicketState.PLANNED,
            result=EpisodeResult(ending=EpisodeEnding.OK, reward=reward, total_tokens=9, trained_tokens=4),
        )
        for number, reward in enumerate(rewards, 1)
    }  # fmt: skip
    batch = Batch(
        id=1, version=1, purpose=Purpose.TRAIN, tickets=list(tickets), publish=True, checkpoint=False,
        progress=0.0, first_of_phase=True,
    )  # fmt: skip
    return batch, tickets


def test_a_users_own_makes_the_plans_advantages(module: ModuleType) -> None:
    def below_best(groups: Sequence[GroupOutcomes]) -> list[list[float]]:
        return [[reward - max(group.rewards) for reward in group.rewards] for group in groups]

    module.below_best = below_best  # type: ignore[attr-defined]
    plan = split_batch(*batch_of([1.0, 0.25, 0.0]), 1, "users_own:below_best")
    assert sorted(item.advantage for item in plan.ranks[0]) == [-1.0, -0.75, 0.0]


@pytest.mark.parametrize(
    "returned, said",
    [
        ([], "0 lists for 1 groups"),
        ([[1.0]], "for group 0 of the batch"),
        ([[1.0, math.nan]], "for group 0 of the batch"),
        ([["a", 1.0]], "ValueError"),
        (None, "TypeError"),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_the_fragment(returned: object, said: str) -> None:
    with pytest.raises(FragmentError, match=said) as raised:
        advantages_of("mine:bad", lambda _: returned, [GroupOutcomes((1.0, 0.0), (3, 3))])  # type: ignore[arg-type]
    assert "scheduler.advantage = 'mine:bad'" in str(raised.value)


def test_names_that_are_none_are_refused_before_a_run_and_modules_at_its_start(module: ModuleType) -> None:
    example = ROOT / "examples" / "tictactoe.toml"
    with pytest.raises(ConfigError, match=r"scheduler.advantage = 'gae' names no fragment.*grpo, mean"):
        load_run(example, [(KEY, "gae")])
    assert load_run(example, [(KEY, "not_there:mine")]).scheduler.advantage == "not_there:mine"
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_fragment(KEY, "not_there:mine", ADVANTAGES)
    with pytest.raises(ConfigError, match="users_own has no mine"):
        load_fragment(KEY, "users_own:mine", ADVANTAGES)
    module.mine = 3  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="cannot be called"):
        load_fragment(KEY, "users_own:mine", ADVANTAGES)


def test_a_module_that_fails_as_it_is_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "users_broken.py").write_text("def mine(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"users_broken:mine.*SyntaxError"):
        load_fragment(KEY, "users_broken:mine", ADVANTAGES)


@pytest.mark.parametrize(
    "overrides, said",
    [
        ({KEY: "reinforce++", "scheduler.resample": "1"}, "resample = 1"),
        ({KEY: "opo", "scheduler.min_group_size": "1"}, "min_group_size = 1"),
        ({"trainer.importance": "masked", "trainer.importance_cap": "0.9"}, "importance_cap = 0.9"),
        ({"trainer.importance": "sequence-masked", "trainer.importance_cap": "0.9"}, "importance_cap = 0.9"),
        ({"trainer.importance": "other"}, "trainer.importance = 'other' names no fragment"),
        ({"trainer.credit": "other"}, "trainer.credit = 'other' names no fragment"),
        ({"trainer.credit": "gae"}, "'gae' with scheduler.advantage = 'grpo': a critic learns rewards"),
        ({"trainer.turn_rewards": "true"}, "turn_rewards = true with scheduler.advantage = 'grpo'"),
        ({KEY: "reward", "scheduler.resample": "1"}, "resample = 1"),
        ({KEY: "mine:fn", "scheduler.group_size": "1", "scheduler.resample": "1"}, "a group of one"),
        ({"trainer.gae_lambda": "0.5"}, 'gae_lambda = 0.5 with trainer.credit = "discounted"'),
        ({"trainer.kl_estimator": "k2"}, "kl_estimator = 'k2' without a KL"),
    ],
)
def test_keys_that_contradict_a_fragment_are_refused(overrides: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_run(ROOT / "examples" / "tictactoe.toml", list(overrides.items()))


def test_a_critic_needs_no_group() -> None:
    overrides = {KEY: "reward", "trainer.credit": "gae", "scheduler.group_size": "1"}
    run = load_run(ROOT / "examples" / "tictactoe.toml", list(overrides.items()))
    assert run.scheduler.group_size == 1


@pytest.mark.parametrize("advantage", ["reward", "mine:baseline"])
def test_turns_have_rewards_where_trajectories_are_not_compared(advantage: str) -> None:
    overrides = {KEY: advantage, "trainer.turn_rewards": "true"}
    assert load_run(ROOT / "examples" / "tictactoe.toml", list(overrides.items())).trainer.turn_rewards
