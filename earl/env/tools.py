"""Environments whose agent calls tools: functions with type hints and a docstring.

    class Library(ToolEnvironment):
        name = "mine/library"
        tools = [search]                      # functions, plain or async

        def reset(self, seed, task):
            self.wanted = task["answer"]
            return task["question"]

        @tool                                 # a method that knows the episode
        def read(self, page: int) -> str:
            "The text of a page."
            return PAGES[page]

        def answered(self, text):
            return StepResult("", reward=float(self.wanted in text), done=True)

    action ─► calls? ── no ─► answered(text) ─► StepResult
                │ yes
                ├─► check ─► run, each within its timeout, all at once ─┐
                └─► a call that is wrong: its error ────────────────────┴─► called(...) ─► StepResult

What a tool raises is shown to the agent as a result with is_error, and so is a call that no tool takes.
What an infrastructure does (EnvHostLost and what derives from it, ServiceUnavailable, ConnectionError)
ends the episode as INFRA_ERROR instead; MemoryError ends it as ENV_ERROR: neither is the agent's doing.

A tool that does not return within its timeout is given up: the agent is shown that, the episode continues.
An async function is cancelled. A plain one keeps its thread, which delays nobody, and until it ends
further calls of the same tool in this episode are refused at once; so are, if it is one that may not
run in parallel with others, all such.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic_core import PydanticSerializationError
from pydantic_core import to_json as json_of

from earl.env.base import Environment, Observation, StepResult, ToolCall, ToolResult
from earl.env.tool_calls import Action, Fault, Tool, calls_in, check, has_calls
from earl.env.tool_functions import FunctionTool, marked_methods, tool, tool_of
from earl.env.truncate import truncate, truncate_all
from earl.errors import ConfigError, EnvHostLost, ServiceUnavailable, ToolError

__all__ = ["Called", "FunctionTool", "ToolEnvironment", "tool", "tool_of"]

# While tools run the gateway gets reports that the step is alive: their own timeouts bound it.
PROGRESS_S = 5.0
_ERROR_CHARACTERS = 1_000
# Never the agent's doing, so never shown to it.
_NOT_SHOWN = (EnvHostLost, ServiceUnavailable, ConnectionError, MemoryError)


@dataclass(frozen=True, slots=True)
class Called:
    """A call and what it led to, uncut. step: what the tool returned, if that was a StepResult."""

    call: ToolCall
    result: ToolResult
    step: StepResult | None = None


class ToolEnvironment(Environment):
    """Base of environments with tools; write `reset`, the tools, and `answered`.

    tools: functions, or Tool objects with something to call (FunctionTool); methods marked with `tool`
    are added. A tool returns a text, or anything that has a JSON form; or a StepResult, whose reward
    counts and which may end the episode. An object may set its own list before `reset` returns.

    tool_timeout_s: for tools that state none. result_characters, observation_characters: how much of one
    result and of all results of an action is shown; longer ones are cut in the middle (truncate.py).
    """

    tools: Sequence[Any] = ()
    selects_tools = True
    tool_timeout_s: float = 20.0
    result_characters: int = 8_000
    observation_characters: int = 32_000

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Turns the class's functions into tools. Raises ConfigError for one that is none."""
        super().__init_subclass__(**keywords)
        declared_tools = {declared.name: declared for declared in map(_tool, cls.tools)}
        cls.tools = tuple((declared_tools | marked_methods(cls)).values())

    def answered(self, text: str) -> Any:
        """An action that calls no tool: the agent's answer. Plain or async; returns a StepResult.

        Without one of its own the episode ends, with no reward.
        """
        return StepResult("", done=True)

    def called(self, calls: Sequence[Called], result: StepResult) -> Any:
        """Decides, after the calls of an action, what the step leads to. Plain or async.

        result: the results as one observation, with the sum of the rewards of tools that gave any.
        """
        return result

    async def step(self, action: Action | str) -> StepResult:
        """Takes an action: carry out its calls, or take it as the answer."""
        if not has_calls(action, self.max_action_characters):
            return await self._authored(self.answered, str(action))
        alive = asyncio.create_task(self._progress())
        try:
            calls = await self._calls(action)
        finally:
            alive.cancel()
        return await self._authored(self.called, calls, self._together(calls))

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            self.report_progress("tools are running")

    async def _authored(self, method: Any, *arguments: Any) -> Any:
        """A method that the author may have written: plain ones run where plain `step`s do."""
        if inspect.iscoroutinefunction(method):
            return await method(*arguments)
        written = getattr(method, "__func__", None) not in (ToolEnvironment.answered, ToolEnvironment.called)
        return await self.in_thread(method, *arguments) if self.blocking and written else method(*arguments)

    # --- running calls -----------------------------------------------------------------------

    async def _calls(self, action: str) -> list[Called]:
        calls = calls_in(action, self.max_action_characters)
        if isinstance(calls, Fault):
            sent = getattr(action, "tool_calls", ()) or (ToolCall("", {}),)
            return [_refused(call, calls.message) for call in sent]
        tools = {entry.name: entry for entry in map(_tool, self.tools)}
        one_by_one = asyncio.Lock()
        outcomes = await asyncio.gather(*(self._call(call, tools, one_by_one) for call in calls))
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, Called)]

    async def _call(
        self, call: ToolCall, tools: dict[str, FunctionTool], one_by_one: asyncio.Lock
    ) -> Called | BaseException:
        """Carries out one call; returns what it led to, or the exception that ends the episode."""
        arguments = check(call, tools)
        if isinstance(arguments, Fault):
            return _refused(call, arguments.message)
        called = tools[call.name]
        async with contextlib.nullcontext() if called.parallel else one_by_one:
            given_up = self._given_up(called)
            if any(not run.ended for run in given_up):
                return _refused(call, f"an earlier call of {called.name} still runs")
            timeout_s = called.timeout_s or self.tool_timeout_s
            run = _Run(called.function if not called.method else getattr(self, called.method), arguments)
            work = asyncio.ensure_future(self._begun(run, called.blocking))
            try:
                done, _ = await asyncio.wait({work}, timeout=timeout_s)
            finally:
                work.cancel()
            if not done:
                given_up[:] = [run, *(run for run in given_up if not run.ended)]
        if not done:
            return _refused(call, f"{called.name} did not return within {timeout_s:g} s")
        if work.cancelled():
            return _refused(call, f"{called.name} was cancelled")
        outcome = work.result()
        if isinstance(outcome, ToolError):
            return _refused(call, outcome.message)
        if isinstance(outcome, _NOT_SHOWN):
            return outcome
        if isinstance(outcome, BaseException):
            return _refused(call, f"{type(outcome).__name__}: {outcome}")
        text, step = outcome
        return Called(call, ToolResult(text, call.id), step)

    def _begun(self, run: _Run, blocking: bool) -> Any:
        """An awaitable of run's outcome; it never raises but for being cancelled."""
        if inspect.iscoroutinefunction(run.function):
            return self._awaited(run)
        return self.in_thread(run.plain) if blocking else self._inline(run)

    # Methods, so that a stack shows whose code holds the loop (watch.py).

    async def _awaited(self, run: _Run) -> Any:
        return await run.awaited()

    async def _inline(self, run: _Run) -> Any:
        return run.plain()

    def _given_up(self, called: FunctionTool) -> list[_Run]:
        """Runs that outlived their timeout, of this tool or of all that run one by one."""
        runs = self.__dict__.setdefault("_runs_given_up", {})
        return runs.setdefault(called.name if called.parallel else None, [])

    # --- what the agent is shown -------------------------------------------------------------

    def _together(self, calls: Sequence[Called]) -> StepResult:
        texts = [call.result.text for call in calls]
        shown = truncate_all(texts, self.result_characters, self.observation_characters)
        results = [
            ToolResult(text, call.result.id, call.result.is_error)
            for text, call in zip(shown, calls, strict=True)
        ]
        lines = [("error: " if result.is_error else "") + result.text for result in results]
        if len(lines) > 1:
            lines = [
                f"[{number}] {str(call.call.name)[:40]}\n{line}"
                for number, (call, line) in enumerate(zip(calls, lines, strict=True), 1)
            ]
        steps = [call.step for call in calls if call.step is not None]
        metrics: dict[str, float] = {}
        for step in steps:
            metrics |= step.metrics
        return StepResult(
            Observation("\n".join(lines), role="tool", tool_results=results),
            sum(step.reward for step in steps),
            any(step.done for step in steps),
            any(step.truncated for step in steps),
            metrics,
        )


class _Run:
    """One call in progress. ended: its code has returned, even if nobody waits for it any more."""

    def __init__(self, function: Any, arguments: dict[str, Any]) -> None:
        self.function = function
        self.ended = False
        self._bound = partial(function, **arguments)

    def plain(self) -> Any:
        """(text, StepResult or None) of a plain function, or the exception that it raised."""
        try:
            return _text_of(self._bound())
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 - handed to the step, which judges it
            return error
        finally:
            self.ended = True

    async def awaited(self) -> Any:
        """The same of an async function."""
        try:
            return _text_of(await self._bound())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - handed to the step, which judges it
            return error
        finally:
            self.ended = True


def _tool(given: Any) -> FunctionTool:
    if isinstance(given, FunctionTool):
        return given
    if isinstance(given, Tool) or not callable(given):
        raise ConfigError(f"tool {given!r} cannot be called", "give a function or a FunctionTool")
    return tool_of(given)


def _refused(call: ToolCall, message: str) -> Called:
    return Called(call, ToolResult(truncate(message, _ERROR_CHARACTERS), call.id, is_error=True))


def _text_of(value: Any) -> tuple[str, StepResult | None]:
    """Converts a tool's value to the text that is shown."""
    if isinstance(value, StepResult):
        shown = value.observation
        return (shown.text if isinstance(shown, Observation) else shown), value
    if isinstance(value, str):
        return value, None
    if value is None:
        return "", None
    try:
        return json_of(value).decode(), None
    except PydanticSerializationError as error:
        raise ToolError(f"the tool returned {type(value).__name__}, which has no JSON form") from error
