"""Packing, the cut into mini-batches, and the columns' checks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.errors import TrainerError
from earl.v1 import scheduler_pb2
from services.trainer.api.codec import decode_plan
from services.trainer.step.batch import Columns, build, minibatches
from services.trainer.step.plan import ReplicaSequence, RoleColumn, TrainingPlan
from services.trainer.step.prefix_packing import Bin


def _item(ticket_id: int, tokens: int, advantage: float = 1.0) -> ReplicaSequence:
    return ReplicaSequence(ticket_id, 1, f"trajectory/{ticket_id}/1", advantage, tokens, position=ticket_id)


def _plan(ranks: list[list[ReplicaSequence]], batch_id: int = 3) -> TrainingPlan:
    return TrainingPlan(batch_id, 1, "policy_gradient", tuple(map(tuple, ranks)), True, False, 0.0, False)


def _filled(lengths: list[int], seed: int = 0) -> Columns:
    rng = np.random.default_rng(seed)
    columns = Columns()
    columns.take([_item(i, n, i + 0.5) for i, n in enumerate(lengths)])
    total = sum(lengths)
    columns.sampled["tokens"][:] = rng.integers(0, 9, total)
    columns.sampled["loss_mask"][:] = rng.integers(0, 2, total)
    columns.sampled["loss_mask"][columns.offsets[:-1]] = 0
    columns.sampled["logprobs"][:] = -rng.random(total)
    return columns


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3))
def test_minibatches_are_the_same_for_any_number_of_ranks(ranks: int, count: int, pass_index: int) -> None:
    items = [_item(i * 7 % 23, 5) for i in range(23)]
    whole = minibatches(_plan([items]), 0, count, pass_index, seed=1)
    split_plan = _plan([items[r::ranks] for r in range(ranks)])
    parts = [minibatches(split_plan, r, count, pass_index, seed=1) for r in range(ranks)]
    for m in range(count):
        split = {split_plan.ranks[r][i].ticket_id for r in range(ranks) for i in parts[r][m]}
        assert split == {items[i].ticket_id for i in whole[m]}
    sizes = [len(part) for part in whole]
    assert sum(sizes) == 23 and max(sizes) - min(sizes) <= 1


def test_passes_shuffle_differently_and_reproducibly() -> None:
    plan = _plan([[_item(i, 5) for i in range(40)]])
    first = minibatches(plan, 0, 4, 0, seed=5)
    assert first == minibatches(plan, 0, 4, 0, seed=5)
    assert first != minibatches(plan, 0, 4, 1, seed=5)


def test_micro_batch_points_each_trained_token_at_the_position_before_it() -> None:
    columns = _filled([4, 7, 3, 6])
    micro = build(columns, Bin([2, 0, 3], [0, 0, 0]), "token", 10, 3)
    assert micro.lengths == [3, 4, 6]
    np.testing.assert_array_equal(micro.positions, [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(micro.targets, micro.tokens[micro.source + 1])
    expected = []
    for i in (2, 0, 3):
        part = slice(columns.offsets[i], columns.offsets[i + 1])
        for token, mask, logprob in zip(
            columns.tokens[part], columns.loss_mask[part], columns.logprobs[part], strict=True
        ):
            if mask:
                expected.append((int(token), float(logprob)))
    got = list(zip(micro.targets.tolist(), micro.behaviour.tolist(), strict=True))
    assert got == expected


def test_columns_reuse_their_arrays_and_count_trained_tokens() -> None:
    columns = _filled([10, 20])
    before = columns.tokens.__array_interface__["data"][0]
    assert columns.trained_tokens().sum() == columns.loss_mask.sum()
    columns.take([_item(9, 12)])
    assert columns.tokens.__array_interface__["data"][0] == before
    assert len(columns.tokens) == 12
    columns.take([])
    assert columns.trained_tokens().tolist() == []


@pytest.mark.parametrize(
    ("name", "position", "value", "said"),
    [
        ("tokens", 2, 99, "token 99"),
        ("logprobs", 1, float("nan"), "log-prob nan"),
        ("loss_mask", 0, 1, "position 0"),
        ("loss_mask", 3, 2, "mask 2"),
    ],
)
def test_columns_that_cannot_be_trained_on_are_named(
    name: str, position: int, value: float, said: str
) -> None:
    columns = _filled([5, 6])
    columns.validate(vocabulary=9)
    getattr(columns, name)[5 + position] = value
    with pytest.raises(TrainerError, match="trajectory/1/1") as raised:
        columns.validate(vocabulary=9)
    assert said in str(raised.value)


def test_reference_log_probs_follow_their_tokens() -> None:
    plain = _filled([5, 4])
    assert not plain.roles
    assert not build(plain, Bin([0, 1], [0, 0]), "token", 1, 1).roles
    columns = Columns()
    place = RoleColumn("reference", ("reference/a/0", "reference/a/1"), 7)
    items = [replace(_item(1, 5), columns=(place,)), _item(2, 4)]
    columns.take([replace(_item(3, 9), columns=(place,))])
    columns.of(0)["reference"][:] = 7.0
    # What is not wanted is not left from the batch before.
    columns.take(items)
    for array in columns.sampled.values():
        array[:] = 0
    columns.sampled["loss_mask"][[2, 3, 4, 7, 8]] = 1
    columns.of(0)["reference"][:] = -np.arange(5)
    micro = build(columns, Bin([1, 0], [0, 0]), "token", 5, 2)
    assert list(micro.roles) == ["reference"] and micro.roles["reference"].dtype == np.float32
    assert micro.roles["reference"].tolist() == [0.0, 0.0, -2.0, -3.0, -4.0]
    columns.validate(9)
    columns.roles["reference"][3] = np.nan
    with pytest.raises(TrainerError, match="trajectory/1/1: position 3"):
        columns.validate(9)


def test_no_token_of_a_masked_sequence_counts_in_the_loss() -> None:
    columns = Columns()
    columns.take([_item(1, 3), replace(_item(2, 3), masked=True)])
    for name, value in (("tokens", 1), ("loss_mask", 0), ("logprobs", -0.5)):
        columns.sampled[name][:] = value
    columns.sampled["loss_mask"][[1, 2, 4, 5]] = 1
    columns.mask()
    assert columns.trained_tokens().tolist() == [2, 0]
    columns.validate(9)
    # A batch later the same place holds another sequence.
    columns.take([_item(3, 3), _item(4, 3)])
    columns.sampled["loss_mask"][:] = [0, 1, 1, 0, 1, 1]
    columns.mask()
    assert columns.trained_tokens().tolist() == [2, 2]


def test_a_plan_says_which_sequences_are_masked() -> None:
    message = scheduler_pb2.BatchPlan(objective=scheduler_pb2.OBJECTIVE_POLICY_GRADIENT)
    rank = message.ranks.add()
    for number in (1, 2):
        rank.items.add(
            ticket_id=number, descriptor_key="k", total_tokens=3, position=number, masked=number == 2
        )
    plan = decode_plan(message.SerializeToString(), 1)
    assert [item.masked for item in plan.ranks[0]] == [False, True]
