"""A pace table: at its points, between them and beyond, out of memory, and every mistake with its line."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.errors import ConfigError
from earl.pacing.table import COLUMNS, PaceTable

HEAD = ",".join(COLUMNS)
TWO = f"""{HEAD}
rollout,2,4,1,1,1024,8,100
rollout,2,4,1,1,1024,32,200
rollout,2,4,1,1,4096,8,50
rollout,2,4,1,1,4096,32,oom
rollout,1,8,1,1,1024,8,80
"""
TP4, TP8 = (4, 1, 1), (8, 1, 1)


def table(text: str = TWO) -> PaceTable:
    return PaceTable.parse(text, "two.csv")


def test_a_point_of_the_table_gives_its_throughput_back():
    # 8 sequences of the pool are 4 of each replica, which has 4 devices of 100 tokens a second.
    assert table().step_s("rollout", TP4, 1024, 4) == pytest.approx(4 / (4 * 100))
    assert table().step_s("rollout", TP8, 1024, 8) == pytest.approx(8 / (8 * 80))


@given(st.floats(1, 1e6), st.floats(0.1, 1e4))
def test_between_points_and_beyond_them_throughput_stays_within_the_table(context, share):
    rate = 1 / (4 * table().token_s("rollout", TP4, context, share))
    assert 50 * 0.999 <= rate <= 200 * 1.001


def test_between_two_lengths_and_loads_the_logarithm_is_linear():
    middle = table().token_s("rollout", TP4, math.sqrt(1024 * 4096), 4) * 4
    assert middle == pytest.approx(1 / math.sqrt(100 * 50))
    assert table().token_s("rollout", TP4, 1024, 8) * 4 == pytest.approx(1 / math.sqrt(100 * 200))


@given(st.lists(st.floats(0.1, 1e4), min_size=2, max_size=8))
def test_more_sequences_never_make_a_step_shorter(shares):
    steps = [table().step_s("rollout", TP4, 1024, share) for share in sorted(shares)]
    assert all(after >= before * (1 - 1e-9) for before, after in itertools.pairwise(steps))


def test_fewer_sequences_than_the_fewest_take_as_long():
    assert table().step_s("rollout", TP4, 1024, 1) == pytest.approx(table().step_s("rollout", TP4, 1024, 4))


def test_what_is_out_of_memory_is_so_for_longer_and_for_more():
    assert not table().fits("rollout", TP4, 4096, 16)
    assert not table().fits("rollout", TP4, 9999, 99)
    assert table().fits("rollout", TP4, 4095, 99)
    assert table().fits("rollout", TP4, 9999, 15)
    assert table().longest("rollout", TP4) == math.inf
    alone = TWO + "rollout,2,4,1,1,8192,2,oom\n"
    assert table(alone).longest("rollout", TP4) == 8192


def test_a_layout_that_the_table_lacks_is_named_with_those_that_it_has():
    with pytest.raises(ConfigError, match=r"two\.csv has no rows of tp2 of rollout.*use tp4 or tp8"):
        table().step_s("rollout", (2, 1, 1), 1024, 1)
    with pytest.raises(ConfigError, match=r"no rows of tp1 of trainer.*add rows of trainer"):
        table().check("trainer", (1, 1, 1))
    assert table().stages == ("rollout",)
    assert table().replicas("rollout") == [TP4, TP8]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rollout,2,4,1,1,1024,8", "line 7: no tokens_per_device_s"),
        ("engine,2,4,1,1,1024,8,1", "line 7: stage is 'engine'"),
        ("rollout,2,4,1,1,1024,0,1", "line 7: concurrency is '0'"),
        ("rollout,2,0.5,1,1,1024,8,1", "line 7: degrees"),
        ("rollout,1,4,1,1,1024,4,101", "line 7 contradicts two.csv, line 2"),
        ("rollout,1,16,1,1,1024,4,oom", "line 7: tp16 of rollout is out of memory in every row"),
    ],
)
def test_a_wrong_line_is_named(line, message):
    with pytest.raises(ConfigError, match=message):
        table(TWO + line + "\n")


def test_a_table_without_its_columns_or_rows_is_refused():
    with pytest.raises(ConfigError, match=r"no column 'tokens_per_device_s'.*its first line is stage,dp"):
        table("stage,tp,context_tokens,concurrency\nrollout,1,1,1\n")
    with pytest.raises(ConfigError, match="has no rows"):
        table(HEAD + "\n")


def test_the_same_line_twice_is_no_contradiction():
    assert table(TWO + "rollout,1,4,1,1,1024,4,100\n").replicas("rollout") == [TP4, TP8]
