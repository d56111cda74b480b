"""Environments with tools: schemas from functions, calls at once, timeouts, errors, what is shown."""

import asyncio
import json
import threading
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from earl.env import Action, Observation, StepResult, ToolCall, ToolEnvironment, tool
from earl.env import tools as tools_module
from earl.env.base import schema_hash
from earl.env.codec import action, action_message, answer, info, observation
from earl.env.tool_calls import MAX_CALLS, OPEN, Tool, render
from earl.env.tools import FunctionTool, tool_of
from earl.env.truncate import shares, truncate, truncate_all
from earl.errors import ConfigError, EnvBackendLost, EnvProtocolError, ToolError
from earl.v1 import env_pb2


class Range(BaseModel):
    low: int
    high: int = 9


def search(
    query: Annotated[str, Field(description="words to find")],
    most: int = 3,
    order: Literal["new", "old"] = "new",
) -> list[str]:
    """Pages with these words."""
    return [f"{query} {order}"] * most


async def wait(name: str) -> str:
    """Waits until the others wait too."""
    await Desk.together.wait()
    return name


class Desk(ToolEnvironment):
    """Every kind of tool."""

    name = "test/desk"
    tools = [search, wait]  # noqa: RUF012
    tool_timeout_s = 20.0
    together = asyncio.Barrier(2)
    gate = threading.Event()

    def reset(self, seed, task):
        self.seen = []
        return "go"

    @tool
    def within(self, bounds: Range) -> dict:
        """A number within bounds."""
        return {"middle": (bounds.low + bounds.high) // 2, "type": type(bounds).__name__}

    @tool(parallel=False)
    def note(self, text: str) -> None:
        """Takes a note."""
        self.seen.append(text)

    @tool(timeout_s=0.05)
    def stuck(self) -> str:
        """Does not return until the test lets it."""
        assert type(self).gate.wait(30)
        return "late"

    @tool(name="async_stuck", timeout_s=0.05)
    async def _stuck(self) -> str:
        """Never returns, and does not let itself be cancelled at once."""
        try:
            await asyncio.Event().wait()
        finally:
            self.seen.append("cancelled")
        return ""

    @tool(blocking=False)
    def fail(self, how: str) -> str:
        """Raises."""
        raise {
            "value": ValueError("no such\npage"),
            "tool": ToolError("not today"),
            "exit": SystemExit(3),
            "lost": EnvBackendLost("its server is gone"),
            "refused": ConnectionRefusedError("port 9"),
            "memory": MemoryError(),
        }[how]

    @tool
    @staticmethod
    def large(count: int) -> str:
        """Many digits."""
        return "0123456789" * count

    @tool
    def submit(self, answer: int) -> StepResult:
        """Ends the episode."""
        return StepResult(f"got {answer}", float(answer == 7), done=True, metrics={"win": 1.0})

    def answered(self, text):
        return StepResult("bye", reward=float(text == "seven"), done=True)


@pytest.fixture
def desk():
    Desk.gate.clear()
    Desk.together = asyncio.Barrier(2)
    made = Desk()
    made.reset(1, {})
    yield made
    Desk.gate.set()


def call(name, _id="", /, **arguments):
    return ToolCall(name, arguments, _id)


def text_of(*calls):
    return "".join(render(one) for one in calls)


def seen(result) -> Observation:
    assert isinstance(result.observation, Observation)
    return result.observation


# --- schemas ---------------------------------------------------------------------------------


def test_functions_and_methods_become_tools_with_schemas():
    schemas = {one.name: one.schema()["function"] for one in Desk.tools}
    assert list(schemas)[:4] == ["search", "wait", "within", "note"] and "_stuck" not in schemas
    assert schemas["search"] == {
        "name": "search",
        "description": "Pages with these words.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "words to find"},
                "most": {"type": "integer", "default": 3},
                "order": {"type": "string", "enum": ["new", "old"], "default": "new"},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    }
    assert schemas["within"]["parameters"]["required"] == ["bounds"]
    assert schemas["large"]["parameters"]["properties"] == {"count": {"type": "integer"}}
    sent = json.loads(info("test/desk", Desk).tools_json)
    assert [one["function"]["name"] for one in sent] == list(schemas)
    fewer = type("Fewer", (Desk,), {"tools": ()})
    assert len(fewer.tools) == len(Desk.tools) - 2 and schema_hash(fewer) != schema_hash(Desk)


def undocumented(x: int):
    return x


def untyped(x):
    """Has no hint."""


def variadic(*x: int):
    """Takes any."""


def strange(x: threading.Thread):
    """Takes what JSON has not."""


def unknown(x: "Nowhere"):  # type: ignore[name-defined]  # noqa: F821
    """Its hint names nothing."""


@pytest.mark.parametrize(
    "bad", [undocumented, untyped, variadic, strange, unknown, lambda: 1, Tool("a", "b"), 7]
)
def test_what_is_no_tool(bad):
    with pytest.raises(ConfigError):
        type("Bad", (ToolEnvironment,), {"tools": [bad]})


# --- calls -----------------------------------------------------------------------------------


async def test_calls_of_one_action_run_at_once_and_are_shown_together(desk):
    result = await desk.step(text_of(call("wait", name="a"), call("wait", name="b")))
    assert seen(result).text == "[1] wait\na\n[2] wait\nb" and seen(result).role == "tool"
    assert (result.reward, result.done) == (0, False)
    one = await desk.step(text_of(call("within", bounds={"low": 3})))
    assert json.loads(seen(one).text) == {"middle": 6, "type": "Range"}


async def test_calls_that_a_client_sent_are_used_as_they_are(desk):
    calls = [
        call("search", "x1", query="cats", most=1),
        call("nothing", "x2"),
        ToolCall("search", "{bad", "x3"),
    ]
    sent = action(env_pb2.Action.FromString(action_message(Action("see", calls)).SerializeToString()))
    assert sent == "see" and list(sent.tool_calls) == calls
    result = await desk.step(sent)
    shown = observation(answer(1, 1, result).result.observation)
    assert shown == seen(result) or list(shown.tool_results) == list(seen(result).tool_results)
    assert [(one.id, one.is_error) for one in shown.tool_results] == [
        ("x1", False),
        ("x2", True),
        ("x3", True),
    ]
    assert shown.tool_results[0].text == '["cats new"]'
    many = await desk.step(Action("", [call("search", str(n), query="q") for n in range(MAX_CALLS + 1)]))
    assert [one.id for one in seen(many).tool_results] == [str(n) for n in range(MAX_CALLS + 1)]
    assert all(one.is_error for one in seen(many).tool_results)


def test_actions_that_cannot_be_sent():
    for bad in (
        "\ud800",
        Action("", [ToolCall("a", {"x": float("nan")})]),
        Action("", [ToolCall("a", {1, 2})]),
    ):
        with pytest.raises(EnvProtocolError, match="cannot be sent"):
            action_message(bad)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OPEN, "without </tool_call>"),
        (text_of(call("serach", query="x")), "no tool 'serach'"),
        (text_of(call("search")), "query: Field required"),
        (text_of(call("search", query="x", most="3")), "most: Input should be a valid integer"),
        (text_of(call("search", query="x", order="best")), "order: Input should be 'new' or 'old'"),
        (text_of(call("search", query="x", limit=1)), "limit: Extra inputs"),
        (text_of(call("within", bounds={"low": True})), "bounds.low: Input should be a valid integer"),
        (text_of(call("fail", how="value")), "ValueError: no such\npage"),
        (text_of(call("fail", how="tool")), "error: not today"),
        (text_of(call("fail", how="exit")), "SystemExit: 3"),
        (text_of(call("fail", how="other")), "KeyError"),
    ],
)
async def test_errors_are_shown_to_the_agent(desk, text, said):
    result = await desk.step(text)
    assert not result.done and said in seen(result).text and seen(result).text.startswith("error: ")
    assert [one.is_error for one in seen(result).tool_results] == [True]


@pytest.mark.parametrize(
    ("how", "error"), [("lost", EnvBackendLost), ("refused", OSError), ("memory", MemoryError)]
)
async def test_what_the_infrastructure_does_is_not_shown(desk, how, error):
    with pytest.raises(error):
        await desk.step(text_of(call("search", query="x"), call("fail", how=how)))


async def test_tools_that_may_not_run_beside_others_keep_their_order(desk):
    await desk.step(text_of(*(call("note", text=str(n)) for n in range(8))))
    assert desk.seen == [str(n) for n in range(8)]


async def test_a_tool_may_end_the_episode(desk):
    result = await desk.step(text_of(call("note", text="a"), call("submit", answer=7)))
    assert (result.done, result.reward, result.metrics) == (True, 1.0, {"win": 1.0})
    assert seen(result).text == "[1] note\n\n[2] submit\ngot 7"


async def test_an_action_without_calls_is_the_answer(desk):
    result = await desk.step("seven")
    assert (result.observation, result.reward, result.done) == ("bye", 1.0, True)
    assert (await desk.step("x" * 100_000)).reward == 0.0

    class Silent(ToolEnvironment):
        name = "test/silent"

    assert (await Silent().step("I am done")).done


@pytest.mark.parametrize("end", ["</think>seven", "", "</think>"])
async def test_a_call_that_the_agent_only_thinks_of_is_not_made(desk, end):
    result = await desk.step(
        f"<think>perhaps {text_of(call('note', text='a'), call('submit', answer=7))}{end}"
    )
    assert (result.observation, desk.seen) == ("bye", [])
    result = await desk.step(
        f"<think>{text_of(call('note', text='a'))}</think>{text_of(call('note', text='b'))}"
    )
    assert (result.done, desk.seen) == (False, ["b"])


async def test_called_decides_what_a_step_leads_to(desk):
    class Strict(Desk):
        async def called(self, calls, result):
            return StepResult(result.observation, -1.0, done=any(one.result.is_error for one in calls))

    strict = Strict()
    strict.reset(1, {})
    assert not (await strict.step(text_of(call("search", query="x")))).done
    assert (await strict.step(text_of(call("search", query="x"), call("search")))).done


# --- timeouts --------------------------------------------------------------------------------


async def test_a_plain_tool_that_does_not_return_is_given_up_and_delays_nobody(desk):
    result = await desk.step(text_of(call("stuck"), call("search", query="x", most=1)))
    assert seen(result).text == (
        '[1] stuck\nerror: stuck did not return within 0.05 s\n[2] search\n["x new"]'
    )
    again = await desk.step(text_of(call("stuck")))
    assert seen(again).text == "error: an earlier call of stuck still runs"
    Desk.gate.set()
    for _ in range(2_000):
        if seen(result := await desk.step(text_of(call("stuck")))).text == "late":
            break
        await asyncio.sleep(0.005)
    assert seen(result).text == "late"


async def test_an_async_tool_that_does_not_return_is_cancelled(desk):
    result = await desk.step(text_of(call("async_stuck")))
    assert seen(result).text == "error: async_stuck did not return within 0.05 s"
    await asyncio.sleep(0)
    assert desk.seen == ["cancelled"]
    assert "did not return" in seen(await desk.step(text_of(call("async_stuck")))).text


async def test_a_step_that_is_cancelled_cancels_its_tools(desk):
    started = asyncio.Event()

    async def endless() -> None:
        """Ends only when cancelled."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            desk.seen.append("ended")

    desk.tools = [tool_of(endless)]
    step = asyncio.create_task(desk.step(text_of(call("endless"))))
    await started.wait()
    step.cancel()
    await asyncio.wait({step})
    await asyncio.sleep(0)
    assert step.cancelled() and desk.seen == ["ended"]


async def test_progress_is_reported_while_tools_run(desk, monkeypatch):
    monkeypatch.setattr(tools_module, "PROGRESS_S", 0.0)
    told = asyncio.Event()
    desk.report_progress = lambda message: told.set()

    async def until_told() -> str:
        """Waits for the report."""
        await told.wait()
        return "told"

    desk.tools = [until_told]
    assert seen(await desk.step(text_of(call("until_told")))).text == "told"


async def test_tools_that_are_known_only_at_run_time(desk):
    async def remote(**arguments):
        return f"got {arguments}"

    schema = {"type": "object", "properties": {"n": {"type": ["integer", "null"], "enum": [1, None]}}}
    desk.tools = [FunctionTool("remote", "Elsewhere.", schema, function=remote)]
    assert seen(await desk.step(text_of(call("remote", n=1)))).text == "got {'n': 1}"
    for bad in (2, True, 1.0, "1"):
        assert "error: n of remote is no" in seen(await desk.step(text_of(call("remote", n=bad)))).text
    assert "remote takes n" in seen(await desk.step(text_of(call("remote", m=1)))).text


# --- what is shown ---------------------------------------------------------------------------


async def test_results_are_truncated_each_and_in_all(desk):
    desk.result_characters, desk.observation_characters = 200, 500
    one = seen(await desk.step(text_of(call("large", count=100)))).text
    assert len(one) == 199 and one.startswith("0123") and one.endswith("6789")
    assert "characters left out" in one
    several = seen(await desk.step(text_of(*[call("large", count=100)] * 4, call("large", count=1))))
    lengths = [len(result.text) for result in several.tool_results]
    assert lengths == [121, 121, 121, 121, 10]


@given(st.text(max_size=300), st.integers(0, 200))
def test_a_truncated_text_is_bounded_and_says_how_much_is_missing(text, limit):
    shown = truncate(text, limit)
    assert len(shown) <= max(limit, 64)
    if len(text) > max(limit, 64):
        head, _, rest = shown.partition("\n[... ")
        missing, _, tail = rest.partition(" characters left out ...]\n")
        assert len(head) + int(missing) + len(tail) == len(text)
        assert text.encode(errors="replace").decode().startswith(head)
    else:
        assert shown == text.encode(errors="replace").decode()


@given(st.lists(st.integers(0, 100), max_size=8), st.integers(0, 400))
def test_shares_use_the_total_up_and_the_longest_give_first(lengths, total):
    given_shares = shares(lengths, total)
    assert sum(given_shares) <= total or not lengths
    if sum(lengths) <= total:
        assert given_shares == lengths
    else:
        bound = max(given_shares, default=0)
        assert all(share == min(length, bound) for share, length in zip(given_shares, lengths, strict=True))
        assert total - sum(given_shares) < len(lengths)
    assert truncate_all(["a" * n for n in lengths], 64, 10_000) == [truncate("a" * n, 64) for n in lengths]
