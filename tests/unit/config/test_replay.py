"""`[replay]`: what its keys come to, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.config.check import cross_check
from earl.config.replay import ReplayConfig
from earl.errors import ConfigError
from services.scheduler.state.rules import rules_of
from tests.support.runs import tictactoe


def checked(directory: Path, scheduler: dict[str, Any] | None = None, **replay: Any) -> None:
    cross_check(tictactoe(directory, replay=replay, scheduler=scheduler or {}))


def test_without_numbers_every_group_is_used_as_often_as_it_may_be(tmp_path: Path) -> None:
    replay = ReplayConfig(reuse=2, max_age=5)
    assert (replay.batch_part(8), replay.kept_groups(8)) == (16, 40)
    replay = ReplayConfig(reuse=2, groups=3, capacity=9)
    assert (replay.batch_part(8), replay.kept_groups(8)) == (3, 9)
    assert (ReplayConfig().batch_part(8), ReplayConfig().kept_groups(8)) == (0, 0)
    config = tictactoe(
        tmp_path, replay={"reuse": 1}, scheduler={"batch_groups": 4, "advantage": "reinforce++"}
    )
    rules = rules_of(config)
    assert (rules.replay_reuse, rules.replay_groups, rules.replay_capacity) == (1, 4, 16)
    assert (rules.replay_age, rules.replay_order, rules.replay_needs_signal) == (4, "freshest", False)


@pytest.mark.parametrize("keys", [{"groups": 2}, {"max_age": 3}, {"capacity": 9}, {"order": "fifo"}])
def test_keys_without_reuse_are_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    [name] = keys
    with pytest.raises(ConfigError, match=rf"replay\.{name} = .* without replay\.reuse"):
        checked(tmp_path, **keys)


def test_an_age_within_the_staleness_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_age = 2 with scheduler\.staleness = 2") as refused:
        checked(tmp_path, {"staleness": 2}, reuse=1, max_age=2)
    assert "replay.max_age = 3 or more" in str(refused.value)
    checked(tmp_path, {"staleness": 2}, reuse=1, max_age=3)


@pytest.mark.parametrize("keys", [{"groups": 9, "capacity": 8}, {"capacity": 3}, {"max_age": 2, "reuse": 3}])
def test_a_batch_that_would_take_more_than_is_kept_is_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"groups .* kept"):
        checked(tmp_path, {"batch_groups": 4, "staleness": 0}, **{"reuse": 1, **keys})
