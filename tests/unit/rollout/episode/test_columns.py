"""Token columns: one length, exact values, versions and turns of every token."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from earl.episode_contract import SAMPLED_COLUMNS, published_columns
from services.rollout.episode.columns import TokenColumns, attempt_name, registry_key

_IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6)


def test_two_turns():
    columns = TokenColumns()
    columns.observe([1, 2, 3], version=4)
    columns.act([7, 8], [-0.5, -0.25], [4, 5])
    columns.observe([9], version=5)
    columns.act([7], [-1.0], [5])
    arrays = columns.arrays()
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "tokens": [1, 2, 3, 7, 8, 9, 7],
        "loss_mask": [0, 0, 0, 1, 1, 0, 1],
        "logprobs": [0.0, 0.0, 0.0, -0.5, -0.25, 0.0, -1.0],
        "versions": [4, 4, 4, 4, 5, 5, 5],
        "turns": [0, 0, 0, 0, 0, 1, 1],
    }
    assert {name: array.dtype.name for name, array in arrays.items()} == SAMPLED_COLUMNS
    assert (columns.prompt_tokens, columns.trained_tokens, columns.turn_tokens) == (3, 3, [5, 2])
    assert (columns.oldest_version, columns.newest_version) == (4, 5)


def test_rewards_lie_at_the_last_token_of_the_turn_that_earned_them():
    columns = TokenColumns()
    columns.earn(9.0)  # of another seat's opening: no turn of this one has earned it
    columns.observe([1, 2], version=1)
    columns.act([7, 8], [-0.5, -0.25], [1, 1])
    columns.earn(0.5)
    columns.earn(0.25)
    columns.observe([3], version=1)
    columns.earn(-2.0)  # while another seat acts
    columns.act([6], [-0.5], [1])
    columns.earn(0.0)
    columns.observe([4], version=1)
    columns.act([5], [-0.5], [1])
    columns.earn(1.0)
    published = published_columns(turn_rewards=True)
    arrays = {name: np.full(len(columns), 3, dtype) for name, dtype in published.items()}
    columns.write(arrays)
    assert arrays["rewards"].tolist() == [0, 0, 0, -1.25, 0, 0, 0, 1]
    assert published_columns(turn_rewards=False) == SAMPLED_COLUMNS == dict(list(published.items())[:5])


def test_oldest_version_counts_loss_masked_tokens_only():
    columns = TokenColumns()
    columns.observe([1], version=2)
    columns.act([5], [-0.1], [9])
    assert (columns.oldest_version, columns.newest_version) == (9, 9)
    columns.observe([1], version=1)
    assert (columns.oldest_version, columns.newest_version) == (9, 9)


def test_scripted_version_zero_is_a_version():
    columns = TokenColumns()
    columns.observe([1], version=0)
    columns.act_scripted([5, 6], version=0)
    columns.observe([1], version=1)
    columns.act_scripted([5], version=1)
    assert (columns.oldest_version, columns.newest_version) == (0, 1)
    assert columns.arrays()["logprobs"].tolist() == [0.0] * 5


@given(st.lists(st.tuples(_IDS, _IDS, st.integers(0, 1000)), max_size=8))
def test_columns_stay_equally_long(turns):
    columns = TokenColumns()
    for observation, action, version in turns:
        columns.observe(observation, version)
        columns.act(action, [-1.0] * len(action), [version] * len(action))
    arrays = columns.arrays()
    assert {array.shape for array in arrays.values()} == {(len(columns),)}
    assert arrays["loss_mask"].sum() == columns.trained_tokens == sum(len(a) for _, a, _ in turns)
    assert sum(columns.turn_tokens) == len(columns)
    assert np.bincount(arrays["turns"], minlength=len(turns)).tolist() == columns.turn_tokens
    versions = arrays["versions"][arrays["loss_mask"] == 1]
    if turns:
        assert (columns.oldest_version, columns.newest_version) == (versions.min(), versions.max())


def test_names_tell_attempts_and_a_workers_lives_apart():
    assert (attempt_name(412, 1), registry_key("rollout-0", 255)) == ("412/1", "trajectories/rollout-0/ff")
