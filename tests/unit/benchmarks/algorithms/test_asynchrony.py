"""`earl bench asynchrony`: arms that differ in the plan alone, actions at steps, and what figures claim."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from benchmarks.algorithms.asynchrony import (
    ACTIONS,
    ARMS,
    KILL_ACTIONS,
    SETTINGS,
    digests_of,
    one_run,
    step_seconds,
    summary,
)
from benchmarks.algorithms.small_demo import small_demo
from benchmarks.algorithms.step_actions import StepAction, StepActions
from earl.errors import ProcessFailed
from earl.parallelism import ROLLOUT, TRAINER


def test_arms_differ_in_the_plan_alone_and_switch_at_the_same_steps():
    planned, free = (small_demo([*SETTINGS, *ARMS[arm]]) for arm in ("planned", "free"))
    others = {"deterministic": True, "switch": {"plan"}}
    assert planned.model_dump_json(exclude=others) == free.model_dump_json(exclude=others)
    assert planned.exact_kernels and free.exact_kernels and planned.exact and not free.exact
    assert planned.keeps_standby and free.keeps_standby
    plan = planned.layout_plan
    assert plan is not None and not ACTIONS["planned"]
    assert [action.step for action in ACTIONS["free"]] == [change.step - 1 for change in plan.changes]
    assert {change.stage for change in plan.changes} == {ROLLOUT, TRAINER}
    assert max(action.step for action in KILL_ACTIONS) < planned.scheduler.steps


def row(arm: str, name: str, step_s: float, **others: Any) -> dict[str, Any]:
    switches = [{"stage": stage, "rolled_back": False} for stage in (ROLLOUT, TRAINER)]
    digests = {"2": [1.0], "3": [2.0]} if arm == "planned" else {}
    kept = {"arm": arm, "name": name, "step_s": step_s, "failure": "", "digests": digests, "stopped": []}
    return kept | {"switches": switches} | others


KILLED = row("planned", "killed", 9.0)
PAIRS = [row("planned", "1", 1.1), row("free", "1", 1.0), row("free", "2", 2.0), row("planned", "2", 2.4)]


def test_the_ratio_is_of_pairs_and_the_killed_run_is_none():
    figures = summary([KILLED, *PAIRS])
    assert figures["ratios"] == [1.1, 1.2] and figures["ratio_max"] == 1.15
    assert (figures["ratio_low"], figures["ratio_high"], figures["kills"]) == (1.1, 1.2, 3.0)
    assert figures["step_s"] == {"planned": 1.75, "free": 1.5} and figures["missed"] == []
    slow = summary([KILLED, row("planned", "1", 1.3), row("free", "1", 1.0)])
    assert slow["missed"] == ["ratio_max"]


def test_digests_are_equal_only_if_all_whole_planned_runs_switched_and_agree():
    def missed(*rows: dict[str, Any]) -> list[str]:
        return summary([*rows, row("free", "1", 1.0)])["missed"]

    other = {"2": [1.0], "3": [9.0]}
    planned = row("planned", "1", 1.0)
    assert missed(KILLED, planned) == []
    assert missed(KILLED, row("planned", "1", 1.0, digests=other)) == ["digests_equal"]
    # A step that was trained again with another outcome; one stage that never switched; standing still.
    assert missed(KILLED | {"digests": {"2": [1.0], "3": [2.0, 9.0]}}, planned) == ["digests_equal"]
    assert missed(KILLED | {"switches": [{"stage": ROLLOUT, "rolled_back": False}]}, planned) == [
        "digests_equal"
    ]
    still = {"2": [1.0], "3": [1.0]}
    assert missed(KILLED | {"digests": still}, planned | {"digests": still}) == ["digests_equal"]
    # Unless its limit of the KL ended that step before it changed anything; but not every step.
    limited = {"digests": {"2": [1.0], "3": [1.0], "4": [2.0]}, "stopped": [3]}
    assert missed(KILLED | limited, planned | limited) == []
    stopped = {"digests": still, "stopped": [3]}
    assert missed(KILLED | stopped, planned | stopped) == ["digests_equal"]
    assert missed(KILLED) == ["ratio_max", "digests_equal"]
    assert missed(KILLED | {"failure": "ended with 1"}, planned) == ["digests_equal", "kills"]
    assert summary([])["missed"] == ["ratio_max", "digests_equal", "kills"]


def test_figures_of_lines():
    lines = [{"version": 2, "weights_digest": 1.0}, {"version": 3, "weights_digest": 2.0}, {"version": 4}]
    assert digests_of([*lines, {"version": 3, "weights_digest": 2.0}]) == {"2": [1.0], "3": [2.0]}
    assert digests_of([*lines, {"version": 3, "weights_digest": 5.0}])["3"] == [2.0, 5.0]
    assert step_seconds({1: 10.0, 2: 11.0, 5: 18.0}) == 2.0 and step_seconds({1: 10.0}) is None


def test_a_run_file_that_cannot_be_is_a_failure():
    figures = one_run("planned", "1", [("scheduler.steps", "10")], ())
    assert "the run ends with step 10" in figures["failure"] and figures["digests"] == {}


def test_actions_wait_for_their_steps_and_what_goes_wrong_is_named(tmp_path: Path):
    done: list[int] = []
    second = threading.Event()

    def fail(directory: Path) -> None:
        second.set()
        raise ProcessFailed(f"no process of {directory.name}", "see its log")

    actions = StepActions(tmp_path, [
        StepAction(3, fail), StepAction(2, lambda directory: done.append(2)), StepAction(9, fail),
    ])  # fmt: skip
    actions.start()
    lines = [("warmup", 9), ("train", 1), ("train", 2), ("train", 3)]
    with (tmp_path / "metrics.jsonl").open("w") as file:
        for phase, step in lines:
            file.write(json.dumps({"phase": phase, "step": step}) + "\n")
    assert second.wait(30.0)
    failures = actions.end()
    assert done == [2] and "after step 3: no process of" in failures[0]
    assert failures[1:] == ["the run ended before step 9 had"]
