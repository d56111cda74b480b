"""Checks what `earl env test` decides by: trends, the random policy, recorded episodes, stream rules."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from earl.env import ToolEnvironment, tool
from earl.env.codec import info
from earl.env.conformance import policies
from earl.env.conformance.bench import Bench
from earl.env.conformance.card import CHECKS, Card, Check, CheckVerdict, in_order
from earl.env.conformance.history import repeated_history
from earl.env.conformance.offered_tools import tools_of
from earl.env.conformance.plan import ExamPlan, check_names, recorded
from earl.env.conformance.rules import Judge
from earl.env.conformance.usage import trend
from earl.env.tool_calls import Fault, calls_in, check
from earl.errors import ConfigError
from earl.v1 import common_pb2, env_pb2

# --- trends ---------------------------------------------------------------------------------


def samples(*values: float) -> list[tuple[int, float]]:
    return [(25 * (number + 1), value) for number, value in enumerate(values)]


def test_steady_growth_is_a_trend_and_its_slope_is_per_episode():
    noise = random.Random(1)
    found = trend(samples(*(1e6 + 25 * number * 4_000 + noise.uniform(-2e4, 2e4) for number in range(40))))
    assert found.grows(3_000) and not found.grows(5_000)


@pytest.mark.parametrize(
    "values",
    [
        [1e6] * 40,
        [1e6 + 5e4 * (number % 7) for number in range(40)],
        [number * 1e5 for number in range(12)] + [12e5] * 28,  # warm-up, then nothing
        [1e6] * 20 + [5e6] + [1e6] * 19,
        [1e6 - number * 1e4 for number in range(40)],
        [],
        [1.0],
    ],
    ids=["flat", "saw", "warm-up", "one peak", "falls", "nothing", "one sample"],
)
def test_what_is_no_trend(values: list[float]):
    assert not trend(samples(*values)).grows(100)


# --- policies -------------------------------------------------------------------------------


class Tools(ToolEnvironment):
    name = "test/tools"

    @tool
    def add(self, a: int, b: int = 0) -> int:
        "The sum."
        return a + b

    @tool
    def find(self, words: list[str], exact: bool, at_least: float) -> str:
        "Finds nothing."
        return ""


def test_random_calls_are_those_that_the_tools_take():
    tools = tools_of(info("test/tools", Tools))
    assert [one["name"] for one in tools] == ["add", "find"]
    known: dict[str, Any] = {one.name: one for one in Tools.tools}
    rng = random.Random(3)
    called = set()
    for _ in range(60):
        act = policies.random_act(env_pb2.Observation(text="a question"), tools, rng)
        if not act.tool_calls:
            continue
        calls = calls_in(str(act))
        assert not isinstance(calls, Fault)
        assert not isinstance(check(calls[0], known), Fault), act
        assert act.tool_calls[0].arguments == calls[0].arguments
        called.add(calls[0].name)
    assert called == {"add", "find"}


def test_the_random_policy_takes_legal_actions_and_is_a_function_of_its_seed():
    seen = env_pb2.Observation(text="a", legal_actions=["x", "y"])
    acts = [policies.random_act(seen, (), random.Random(seed)) for seed in range(20)]
    assert set(acts) == {"x", "y"}
    assert acts == [policies.random_act(seen, (), random.Random(seed)) for seed in range(20)]


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 4}, lambda value: value in (3, 4)),
        ({"type": "number", "minimum": 1000}, lambda value: value >= 1000),
        ({"enum": ["a", 2]}, lambda value: value in ("a", 2)),
        ({"anyOf": [{"type": "null"}, {"const": 7}]}, lambda value: value in (None, 7)),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, lambda value: len(value) >= 2),
        ({"type": "string", "minLength": 9}, lambda value: len(value) >= 9),
        ({"type": ["string", "null"]}, lambda value: value is None or isinstance(value, str)),
    ],
)
def test_random_values_fit_their_schema(schema: dict[str, Any], fits: Any):
    rng = random.Random(5)
    assert all(fits(policies.random_value(schema, rng)) for _ in range(30))


# --- repeated history -----------------------------------------------------------------------


def told(steps: int, show: Callable[[list[str]], str]) -> list[str]:
    """The observations of an episode: of each, `show` gets the lines that its steps have brought so far."""
    lines = [f"you went {'north' if step % 2 else 'south'} to room {step * 7}" for step in range(steps)]
    return [show(lines[:count]) for count in range(steps + 1)]


@pytest.mark.parametrize(
    "show",
    [
        lambda lines: "begin " + " ".join(lines),
        lambda lines: " ".join(lines) or "The rules, once.",
        lambda lines: "\n".join(["begin", *lines]),
        lambda lines: "\n".join([f"turn {len(lines)} of 9", *reversed(lines), "what now?"]),
        lambda lines: f"turn {len(lines)} of 9\nyour moves: {', '.join(lines)}",
    ],
    ids=[
        "one line",
        "after the rules",
        "appended",
        "under a counter, the newest first",
        "in one line under a counter",
    ],
)
def test_observations_that_are_the_episode_so_far(show: Callable[[list[str]], str]):
    history = repeated_history(told(8, show))
    assert history is not None and history.steps == 8
    assert 0.6 < history.repeated_bytes / history.shown_bytes < 0.9


@pytest.mark.parametrize(
    "show",
    [
        lambda lines: "\n".join(["begin", *lines[-1:]]),
        lambda lines: "\n".join(["begin", *lines[-3:]]),
        lambda lines: f"score {10 ** len(lines)}",
        lambda lines: "\n".join(["board", *lines, *["." * 25] * (8 - len(lines))]),
        lambda lines: f"{str(len(lines)) * 90}\nyou carry {'a stone, ' * len(lines)}",
    ],
    ids=["the new line", "the last three", "a counter", "a board of one size", "what it carries"],
)
def test_observations_that_are_no_history(show: Callable[[list[str]], str]):
    assert repeated_history(told(8, show)) is None


def test_a_short_episode_is_not_judged():
    assert repeated_history(told(3, " ".join)) is None


def test_calls_without_arguments_may_be_sound():
    free = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    bound = {"name": "take", "parameters": {"type": "object", "required": ["what"]}}
    assert "no arguments" in policies.may_be_sound([free])
    assert not policies.may_be_sound([bound]) and not policies.may_be_sound([])


# --- recorded episodes ----------------------------------------------------------------------


def test_recorded_episodes(tmp_path: Path):
    path = tmp_path / "episodes.jsonl"
    path.write_text(
        '{"seed": 7, "task": {"level": 2}, "actions": ["a", "b"], "return": 1}\n\n{"actions": []}\n'
    )
    first, second = recorded(path)
    assert (first.seed, first.task, first.acts, first.return_) == (7, {"level": 2}, ["a", "b"], 1)
    assert (second.seed, second.acts, second.return_) == (0, [], None)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"actions": "a"}',
        '{"actions": [1]}',
        '{"actions": [], "sed": 1}',
        '{"actions": [], "seed": -1}',
        '{"actions": [], "return": "1"}',
        '{"actions": [], "task": 3}',
    ],
)
def test_lines_that_are_no_recorded_episode(tmp_path: Path, line: str):
    path = tmp_path / "episodes.jsonl"
    path.write_text('{"actions": []}\n' + line)
    with pytest.raises(ConfigError, match=r"episodes\.jsonl:2"):
        recorded(path)


def test_a_check_that_there_is_not():
    assert ExamPlan(only=check_names(["leaks"])).wants("leaks") and not ExamPlan(
        only=check_names(["leaks"])
    ).wants("drain")
    with pytest.raises(ConfigError, match="'leak'; name some of reset,"):
        check_names(["leak"])


def test_the_leak_check_leaves_time_for_others():
    now, plan = monotonic(), ExamPlan(leak_s=300.0)
    link: Any = None
    assert Bench(link, plan).leak_s() == 300.0
    assert Bench(link, plan, ends=now + 100.0).leak_s() <= 70.0
    assert Bench(link, plan, ends=now + 100.0, environments_left=2).leak_s() <= 35.0
    assert Bench(link, plan, ends=now).leak_s() == 0.0


# --- the card -------------------------------------------------------------------------------


def test_a_card_is_in_order_and_fails_by_one_check():
    names = list(CHECKS)
    checks = [Check(name, "host", CheckVerdict.PASS, "") for name in reversed(names)]
    assert [check.name for check in in_order(checks)] == names
    card = Card("host", ["a"], [*checks, Check("leaks", "a", CheckVerdict.FAIL, "grows", "mend it")], 1.5)
    assert not card.passed and card.as_object()["counts"]["fail"] == 1
    assert Card("host", ["a"], [Check("leaks", "a", CheckVerdict.WARN, "")], 1.5).passed
    assert json.loads(json.dumps(card.as_object())) == card.as_object()


# --- messages that cross --------------------------------------------------------------------


def asked(judge: Judge, session: int, *seqs: int) -> None:
    judge.opened(session, "game")
    for seq in seqs:
        judge.requested(session, seq)


def result(session: int, seq: int, **fields: Any) -> env_pb2.Result:
    return env_pb2.Result(session=session, seq=seq, **fields)


def test_a_result_that_crossed_its_close_is_not_late():
    judge = Judge(1 << 20)
    asked(judge, 1, 0, 1)
    judge.closed(1)
    assert judge.result(result(1, 0)) and judge.result(result(1, 1))
    sessions = judge.fence()
    judge.fenced(sessions)
    judge.fenced(sessions)  # a second ping that was sent before the first one's pong
    assert not judge.violations
    assert not judge.result(result(1, 1))
    assert list(judge.violations) == ["late"]


def test_what_a_cancelled_step_may_still_answer():
    judge = Judge(1 << 20)
    asked(judge, 1, 0, 1)
    judge.cancelled(1)
    judge.fenced(judge.fence())
    timed_out = result(1, 1, done=True, ending=common_pb2.ENDING_TIMEOUT, message="cancelled")
    assert judge.result(timed_out) and not judge.violations
    assert not judge.result(result(1, 0)) and list(judge.violations) == ["late"]


def test_asked_twice_may_be_answered_twice_and_no_more():
    judge = Judge(1 << 20)
    asked(judge, 1, 0, 0)
    first = result(1, 0, observation=env_pb2.Observation(text="a"))
    assert judge.result(first) and judge.result(first) and not judge.violations
    assert not judge.result(first)
    assert judge.violations["answers"] == ["3 results for session 1 (game) seq 0, asked once"]


def test_violations_are_counted_all_and_kept_a_few():
    judge = Judge(1 << 20)
    for session in range(100):
        judge.result(result(session, 0))
    assert (judge.counted["answers"], len(judge.violations["answers"])) == (100, 5)
