"""The interface of an environment: a class with `reset` and `step`.

    class Guess(Environment):
        name = "mine/guess"

        def reset(self, seed, task):
            self.secret = random.Random(seed).randrange(10)
            return "guess a digit"

        def step(self, action):
            right = action.strip() == str(self.secret)
            return StepResult("right" if right else "wrong", reward=float(right), done=right)

One object plays one episode. All randomness comes from `seed`, so that an episode can be repeated.
An exception ends the episode as ENV_ERROR: it is reported, never trained on and never a reward.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from earl.env.threads import in_thread
from earl.env.tool_calls import MAX_CHARACTERS, Action, Tool, ToolCall, ToolResult
from earl.errors import EnvironmentFailure

__all__ = [
    "ISOLATIONS",
    "MAX_SEATS",
    "ROLES",
    "Action",
    "Ending",
    "Environment",
    "Factory",
    "Limits",
    "Observation",
    "StepResult",
    "Tool",
    "ToolCall",
    "ToolResult",
    "schema_hash",
]

Factory = Callable[[], "Environment"]

ROLES = ("user", "tool")
ISOLATIONS = ("thread", "process")
# No environment may offer more seats to a client.
MAX_SEATS = 64


class Ending(enum.IntEnum):
    """The ending of an episode; the numbers are those of earl.v1.Ending. Only OK and TRUNCATED may train."""

    NONE = 0
    OK = 1
    TRUNCATED = 2
    ENV_ERROR = 3
    INFRA_ERROR = 4
    TIMEOUT = 5


@dataclass(frozen=True, slots=True)
class Observation:
    """The agent's view: a text and, where they can be listed, the actions that are legal now.

    role: who says it, for chat models: "user", or "tool" for what a tool that the agent called answers.
    tool_results: the answers one by one, for clients that sent the calls as such; `text` has them too.
    seat: whose turn it is, and whom this is for, from 0; after the last step, the seat that took it. It
    stays 0 where the client plays one seat.
    """

    text: str
    legal_actions: Sequence[str] = ()
    role: str = "user"
    tool_results: Sequence[ToolResult] = ()
    seat: int = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step.

    reward: of this step alone, finite. done: the episode ended by its own rules. truncated: it was
    cut short, for example by a bound on moves. metrics: finite numbers about the whole episode, given
    with the last result, for example {"win": 1.0}.
    rewards: where the client plays several seats, the reward of each for this step, whoever acted;
    `reward` is then left at 0. seat_metrics: the metrics of each seat, with the last result.
    """

    observation: Observation | str
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    rewards: Sequence[float] = ()
    seat_metrics: Sequence[Mapping[str, float]] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Longest waits of a session, in seconds: for a host with free capacity, the reset, one step, the
    episode.
    """

    queue_s: float = 60.0
    reset_s: float = 30.0
    step_s: float = 30.0
    episode_s: float = 600.0


class Environment:
    """Base of environments. `reset`, `step` and `close` may be plain or async methods.

    name: unique in the fleet, "package/game". reward_range: bounds of the sum of an episode's rewards, of
    each seat. seats: how many seats of a session a client may play.
    blocking: whether plain methods may take longer than about a millisecond; they then run in a
    thread of their own, so that they hold up nobody. It may also be set on the object in `reset`.
    tools: what actions may call (earl/env/tools.py carries the calls out). selects_tools: a run may leave
    some of them out.
    isolation: "process" for code that may crash, or never return: each episode then runs in a process
    of its own (isolation.py), whose heap memory_bytes bounds, 0 for no bound.

    The host makes an object for each episode, without arguments, and then sets its attributes
    report_progress, in_thread, max_action_characters, seats_played and tools_allowed. A subclass uses them
    from `reset` on, and neither overrides nor sets them. Without a host, as in an environment's own tests,
    report_progress does nothing, in_thread starts a thread, and the others have their defaults.
    """

    name: ClassVar[str] = ""
    description: ClassVar[str] = ""
    reward_range: ClassVar[tuple[float, float] | None] = None
    action_schema: ClassVar[Mapping[str, Any]] = {"type": "string"}
    observation_schema: ClassVar[Mapping[str, Any]] = {"type": "string"}
    blocking: bool = True
    tools: Sequence[Tool] = ()
    isolation: ClassVar[Literal["thread", "process"]] = "thread"
    memory_bytes: ClassVar[int] = 0
    seats: ClassVar[int] = 1
    selects_tools: ClassVar[bool] = False

    # Set by the host before `reset`: the longest action in whose text calls of tools are looked for, in
    # characters. It is the run's gateway.max_action_characters.
    max_action_characters: int = MAX_CHARACTERS
    # Set by the host before `reset`: how many seats of this session the client plays, from 1 to `seats`. With
    # several, every observation names its seat, and a StepResult has the rewards of all of them.
    seats_played: int = 1
    # Set by the host before `reset`: names of the tools that the agent may call, all if empty. `tools` then
    # has those alone; a `reset` that sets its own list of tools sets `self.allowed_of(tools)`.
    tools_allowed: Sequence[str] = ()
    # Set by the host before `reset`: tells the gateway that a slow step is alive. Any thread may call it.
    report_progress: Callable[[str], None] = staticmethod(lambda message: None)
    # Set by the host before `reset`: `await self.in_thread(function, *arguments)` in async methods, for what
    # blocks. A call that is cancelled keeps its thread; the host offers less capacity until it ends.
    in_thread: Callable[..., Awaitable[Any]] = staticmethod(in_thread)

    def reset(self, seed: int, task: dict[str, Any]) -> Any:
        """Starts the episode; returns an Observation or its text."""
        raise NotImplementedError

    def step(self, action: Any) -> Any:
        """Takes one action, an Action: its text, with .tool_calls if the client sent any.

        Returns a StepResult.
        """
        raise NotImplementedError

    def allowed_of(self, tools: Sequence[Any]) -> tuple[Any, ...]:
        """Leaves out the tools that the agent may not call.

        Raises EnvironmentFailure for an allowed name that none has.
        """
        named = {getattr(tool, "name", None) or tool.__name__: tool for tool in tools}
        if missing := [name for name in self.tools_allowed if name not in named]:
            raise EnvironmentFailure(
                f"{self.name or type(self).__name__} has no tool {missing[0]!r}",
                f"it has {', '.join(named) or 'none'}",
            )
        return tuple(named[name] for name in self.tools_allowed) or tuple(tools)

    def close(self) -> Any:
        """Releases what the episode held. Called once, also after a failure."""


def schema_hash(environment: type[Environment] | Environment) -> str:
    """Hash of the schemas of actions, observations and tools; hosts that serve one name must agree on it."""
    schemas: dict[str, Any] = {
        "action": environment.action_schema,
        "observation": environment.observation_schema,
    }
    if environment.tools:
        schemas["tools"] = [tool.schema() for tool in environment.tools]
    return hashlib.sha256(json.dumps(schemas, sort_keys=True).encode()).hexdigest()[:16]
