"""Advantages, losses and gradients against numbers that TRL made: tests/peers/recorded.json.

`make test-peers` asks TRL itself; this holds without it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.peers import cases, objective
from tests.peers.asking import RECORDED


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", cases.cases())
def test_objective_agrees_with_what_trl_made(recorded: dict[str, Any], name: str) -> None:
    theirs = recorded["answer"]["cases"][name]
    assert theirs["settings"] == cases.cases()[name], "record it anew: python -m tests.peers.asking"
    objective.check(objective.ours(recorded["request"], theirs["settings"]), theirs)


def test_the_recorded_trajectories_test_something(recorded: dict[str, Any]) -> None:
    plain = recorded["answer"]["cases"]["token mean (bnpo)"]
    assert 0.05 < plain["metrics"]["clip_fraction"] < 0.5
    assert any(plain["advantages"]) and 0.0 in plain["advantages"]
    assert len({len(row) for row in recorded["request"]["completions"]}) > 3
    assert any(0 in mask for mask in recorded["request"]["mask"])
