"""Dataclasses from parsed JSON: a launch's record is read back as it was, what does not fit is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Literal, TypeVar

import pytest

from earl.json_fields import from_json
from earl.stack.record import LaunchRecord
from earl.stack.status import (
    ConfidenceBounds,
    EvaluationStatus,
    Gain,
    ProcessState,
    RunStatus,
    StageState,
    Transfers,
    WorkerState,
)
from earl.switch_figures import StageSwitch

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class Pair(Generic[Content]):
    first: Content
    second: Content


@dataclass(frozen=True, slots=True)
class Mixed:
    count: int
    share: float = 0.5
    state: Literal["", "done"] = ""
    by_name: Mapping[str, float] = field(default_factory=dict)
    pairs: tuple[Pair[str], ...] = ()
    reason: str | None = None
    rest: Any = None


def test_a_launch_s_record_is_read_back_as_it_was():
    switch = StageSwitch(epoch=2, before="dp2", after="tp2", stall_s=0.5, moved_bytes=7)
    evaluation = EvaluationStatus(
        "final", 3, 8, 8, 0.5, 0.25, {"win": 0.5}, 1, ConfidenceBounds(0.4, 0.6), None, Gain(0.1, None, 4)
    )
    moved = {"shm": Transfers(5, 0.5, 0)}
    worker = WorkerState("rollout-0", "rollout", "tp2", 4, 1, 3, 0.2, {"x": 1.0}, moved)
    stage = StageState("rollout", "tp2", last=switch)
    metrics = {"loss": math.inf}
    status = RunStatus(
        run="first", metrics=metrics, evaluations=(evaluation,), stages=(stage,), workers=(worker,)
    )
    process = ProcessState("model", "done", 4.5, 0, 17)
    record = LaunchRecord(1, "m", ("/tmp/a",), 5, 6, 1.5, "complete", (process,), status, 7)
    assert from_json(LaunchRecord, json.loads(json.dumps(asdict(record)))) == record


def test_what_is_left_out_has_its_default_and_what_is_unknown_is_left_out():
    assert from_json(Mixed, {"count": 3, "newer": [1]}) == Mixed(3)
    given = {"count": 1, "share": 1, "pairs": [{"first": "a", "second": "b"}], "rest": [{}]}
    assert from_json(Mixed, given) == Mixed(1, 1.0, pairs=(Pair("a", "b"),), rest=[{}])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"count": "3"}, "Mixed.count"),
        ({"count": True}, "Mixed.count"),
        ({"count": 1.5}, "Mixed.count"),
        ({"share": "1"}, "Mixed.share"),
        ({"state": "over"}, "Mixed.state"),
        ({"by_name": [1.0]}, "Mixed.by_name"),
        ({"by_name": {"a": None}}, "Mixed.by_name.a"),
        ({"pairs": {}}, "Mixed.pairs"),
        ({"pairs": [{"first": "a", "second": 2}]}, r"Mixed.pairs\[0\].second"),
        ({"pairs": [{"first": "a"}]}, r"Mixed.pairs\[0\] has no second"),
        ({"reason": 1}, "Mixed.reason"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change: dict[str, Any], named: str):
    with pytest.raises(ValueError, match=named):
        from_json(Mixed, {"count": 1} | change)


@pytest.mark.parametrize("value", [None, [], "text", {}])
def test_what_is_no_object_or_lacks_a_field_is_refused(value: object):
    with pytest.raises(ValueError, match="Mixed"):
        from_json(Mixed, value)


@dataclass(frozen=True, slots=True)
class Unreadable:
    content: bytes


@pytest.mark.parametrize("kind", [Unreadable, Pair])
def test_an_annotation_that_json_has_nothing_for_is_an_error(kind: Any):
    with pytest.raises(TypeError, match="no value of"):
        from_json(kind, {"content": "a", "first": 1, "second": 2})
