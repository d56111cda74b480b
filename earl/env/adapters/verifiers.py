"""Environments of verifiers (package verifiers 0.4, `verifiers.v1`), each episode played by the agent.

    class ReverseText(Verifiers):
        name = "verifiers/reverse-text"
        taskset = "reverse-text"
        config = {"agent": {"max_turns": 4}}          # more of what verifiers calls an EnvConfig

verifiers' pins clash with EARL's, so its env host lives in an environment of its own, with the base install
of EARL (`make setup-envs` makes one), and dials the gateway like any other:

    .venv-verifiers/bin/earl env serve mine:ReverseText --gateway 127.0.0.1:7000

verifiers runs the whole episode and asks a model for each turn; here the model is the agent
(verifiers_model.py). What is new in the context that it is asked with is the observation, the action is its
reply: calls of tools in it, sent as such or in <tool_call> marks, go to verifiers' own tools. The reward is
the trace's, given with the last step, its metrics and single rewards are the episode's; a limit of verifiers
truncates it. Whatever verifiers records as an error is one here: ENV_ERROR, never a reward.

Task: {"index": 3} for one task of the taskset; otherwise the seed chooses, and evaluation's are never
training's (held_out.py). Unless the config says otherwise, a role named `agent` gets the harness `null`, run
in this process (verifiers_chat.py), and the runtime `subprocess`. Roles that are not trained need a model
and client of their own.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from verifiers.v1 import Env, EvalClientConfig, ModelContext, Trace  # pyright: ignore[reportMissingImports]
from verifiers.v1.agent import agent_config_fields  # pyright: ignore[reportMissingImports]
from verifiers.v1.harnesses.null.harness import NullHarness  # pyright: ignore[reportMissingImports]
from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config  # pyright: ignore[reportMissingImports]

from earl.env.adapters.held_out import drawn
from earl.env.adapters.open_context import shared
from earl.env.adapters.verifiers_chat import InProcess
from earl.env.adapters.verifiers_model import Seats, serving
from earl.env.adapters.verifiers_seat import Ask, VerifiersSeat
from earl.env.base import Environment, Observation, StepResult, Tool
from earl.env.tool_calls import Fault, before_calls, calls_in, describe, has_calls
from earl.errors import ConfigError, EnvironmentFailure

AGENT: dict[str, Any] = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
CANCEL_S = 10.0


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Resources that the episodes of one class share on a host."""

    env: Env
    tasks: list[Any]
    seats: Seats


class Verifiers(Environment):
    """Plays the tasks of a taskset, in the environment of verifiers that goes with it.

    taskset: its id. config: further data of the EnvConfig. max_tasks: how many of the taskset's tasks are
    loaded. start_s: longest wait for them and for what else verifiers starts, turn_s: for what follows an
    action, in seconds.
    """

    taskset: ClassVar[str] = ""
    config: ClassVar[Mapping[str, Any]] = {}
    max_tasks: ClassVar[int] = 10_000
    start_s: ClassVar[float] = 120.0
    turn_s: ClassVar[float] = 300.0

    _seat: VerifiersSeat | None = None
    _run: asyncio.Task[Any] | None = None

    async def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """Starts an episode.

        Raises ValueError for a malformed task, ConfigError for a malformed config, EnvironmentFailure.
        """
        cls = type(self)
        kept = shared(cls, lambda: _loaded(cls), f"verifiers environment {self.name!r}")
        loaded = await kept.entered(self.start_s)
        self._seats = loaded.seats
        self._seat = loaded.seats.take()
        client = EvalClientConfig(base_url=loaded.seats.url, headers=loaded.seats.headers, api_key_var="")
        context = ModelContext(model=self._seat.model, client=client)
        chosen = loaded.tasks[_index(loaded.tasks, seed, task)]
        self._tools = ""
        self._run = asyncio.create_task(loaded.env.run_episode(chosen, context))
        first = await self._turn(self._seat)
        if isinstance(first, StepResult):
            raise EnvironmentFailure(f"{self.name} ended before it asked the agent anything")
        return first

    async def step(self, action: str) -> StepResult:
        """Takes the agent's reply."""
        assert self._seat is not None
        self._seat.say(_message(action, self.max_action_characters))
        following = await self._turn(self._seat)
        return following if isinstance(following, StepResult) else StepResult(following)

    async def close(self) -> None:
        """Ends the episode, wherever it is; bounded."""
        if self._seat is not None:
            self._seats.free(self._seat)
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait({self._run}, timeout=CANCEL_S)

    async def _turn(self, seat: VerifiersSeat) -> Observation | StepResult:
        """Returns the agent's next prompt, or the end."""
        assert self._run is not None
        next_call = asyncio.create_task(seat.next_call())
        try:
            await asyncio.wait(
                {next_call, self._run}, timeout=self.turn_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            next_call.cancel()
        if next_call.done() and not next_call.cancelled():
            return self._observation(next_call.result())
        if self._run.done():
            return _end(self._run.result(), seat)
        raise EnvironmentFailure(f"{self.name} did nothing for {self.turn_s:g} s")

    def _observation(self, ask: Ask) -> Observation:
        texts = [message["text"] for message in ask.messages if message["role"] != "assistant"]
        tools = describe([_tool(schema["function"]) for schema in ask.tools]) if ask.tools else ""
        if tools != self._tools:
            texts.insert(0, tools)
            self._tools = tools
        roles = {message["role"] for message in ask.messages}
        return Observation("\n\n".join(texts), role="tool" if roles == {"tool"} else "user")


@asynccontextmanager
async def _loaded(cls: type[Verifiers]) -> AsyncIterator[_Loaded]:
    data = copy.deepcopy(dict(cls.config))
    data["taskset"] = {"id": cls.taskset} | data.get("taskset", {})
    if "agent" in env_config_type(cls.taskset, data.get("id", "")).model_fields:
        data["agent"] = AGENT | data.get("agent", {})
    env = load_environment(resolve_env_config(data))
    tasks = await asyncio.to_thread(lambda: list(itertools.islice(env.taskset, cls.max_tasks)))
    if not tasks:
        raise ConfigError(f"{cls.__name__}: taskset {cls.taskset!r} has no task", "name one that has some")
    base_setup = env.setup

    async def setup(agents: Any) -> None:
        """Makes `null` harnesses run in this process."""
        await base_setup(agents)
        for role in agent_config_fields(env.config):
            agent = getattr(agents, role)
            if type(agent.harness) is NullHarness:
                agent.harness = InProcess(agent.harness.config)

    env.setup = setup
    async with serving() as seats, env.serving():
        yield _Loaded(env, tasks, seats)


def _index(tasks: list[Any], seed: int, task: Mapping[str, Any]) -> int:
    if unknown := set(task) - {"index"}:
        raise ValueError(f"unknown task key {sorted(unknown)[0]!r}; known is index")
    if "index" not in task:
        return drawn(seed, lambda number: number % len(tasks), lambda index: tasks[index].hash)
    index = task["index"]
    if type(index) is not int or not 0 <= index < len(tasks):
        raise ValueError(f"index {index!r} is none of the taskset's {len(tasks)} tasks")
    return index


def _message(action: str, max_characters: int) -> dict[str, Any]:
    """The assistant's message. Calls that cannot be read stay text, as a model server would leave them."""
    calls = calls_in(action, max_characters) if has_calls(action, max_characters) else []
    if isinstance(calls, Fault) or not calls:
        return {"content": str(action)}
    return {
        "content": before_calls(str(action)).strip(),
        "tool_calls": [
            {
                "id": call.id or f"call-{number}",
                "type": "function",
                "function": {"name": str(call.name), "arguments": json.dumps(call.arguments)},
            }
            for number, call in enumerate(calls)
        ],
    }


def _tool(function: Mapping[str, Any]) -> Tool:
    return Tool(function["name"], function.get("description") or "", function.get("parameters") or {})


def _end(episode: Any, seat: VerifiersSeat) -> StepResult:
    """The last step. Raises what the seat refused, or EnvironmentFailure for what went wrong."""
    if seat.refusal is not None:
        raise seat.refusal
    trace = _trained(episode)
    errors = [*episode.errors, *(error for failed_trace in episode.traces for error in failed_trace.errors)]
    if errors or not episode.ok or trace is None:
        failures = "; ".join(f"{error.type}: {error.message}" for error in errors) or "no agent was run"
        raise EnvironmentFailure(f"verifiers failed: {failures}")
    numbers: dict[str, float] = {}
    for name, reward in trace.rewards.items():
        if reward is not None:
            numbers[f"reward/{name}"] = float(reward.score)
    numbers |= {name: float(value) for name, value in trace.metrics.items() if value is not None}
    truncated = bool(trace.is_truncated)
    return StepResult("", float(trace.reward), not truncated, truncated, numbers)


def _trained(episode: Any) -> Trace | None:
    """The trace that the agent made: the one with a model call on its seat."""
    for trace in episode.traces:
        if any(call.model and call.model.startswith("earl-") for call in trace.calls):
            return trace
    return None
