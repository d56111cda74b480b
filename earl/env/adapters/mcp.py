"""The tools of an MCP server (package mcp 2.3) as an environment: a question, calls of tools, an answer.

    class Files(McpEnvironment):
        name = "mine/files"
        server = Stdio([sys.executable, "files_server.py"])      # or Http("http://127.0.0.1:8000/mcp")

    {"question": "How many lines has notes.txt?", "answer": 12, "check": "numeric"}

The task gives the question and what is right: answer, check and tolerance (answers.py). Or the class names a
`verifier`, a function (or "module:function") that is given what the agent did and returns the reward; it may
be async and may ask the server itself, for example for the state that the agent left behind. The agent sees
the tools, the question and how to give the answer: an action that calls no tool is the answer, which is what
is between the last <answer> and </answer>, or else its last line.

A server is started, or connected to, for each episode, or once for all that a host plays (`shared`). The
first reset waits for its server's start. From then on some wait, started ahead (`ready_servers`), and each
plays one episode. What a server, or the verifier, fails with is never a reward: a lost server ends the
episode as INFRA_ERROR, a verifier that raises as ENV_ERROR. Metrics: win (the reward is at least 1), calls,
errors (calls that were refused or failed), answered.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from earl.env.adapters.answers import FORM, checked, final
from earl.env.adapters.mcp_server import PROBE_S, Http, McpAnswer, McpConnection, Server, Stdio
from earl.env.adapters.metrics import metrics
from earl.env.base import Observation, StepResult
from earl.env.tool_calls import describe
from earl.env.tools import Called, FunctionTool, ToolEnvironment
from earl.errors import ConfigError, ToolError

__all__ = ["Finished", "Http", "McpAnswer", "McpEnvironment", "Stdio"]

MAX_READY = 64
_CHECK = frozenset({"question", "answer", "check", "tolerance"})


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished episode for a verifier. answer: the agent's, empty if it gave none. calls: what it called,
    in order.

    call: asks the server, `await call(tool, arguments)`.
    """

    task: Mapping[str, Any]
    answer: str
    calls: Sequence[Called]
    call: Callable[[str, dict[str, Any]], Awaitable[McpAnswer]]


class McpEnvironment(ToolEnvironment):
    """One question with the tools of `server`.

    ready_servers: servers that each host process starts ahead of its episodes, at most MAX_READY; 0 for one
    that must not run beside another. It has no effect on an Http, on a shared server, and on one that an
    object sets for itself.
    offered: names of the tools that the agent may call, all if empty. max_turns: actions after which the
    episode is truncated. start_s: longest wait for the server, in seconds; each call's is tool_timeout_s.
    """

    server: ClassVar[Server | None] = None
    shared: ClassVar[bool] = False
    ready_servers: ClassVar[int] = 2
    offered: ClassVar[Sequence[str]] = ()
    verifier: ClassVar[Callable[[Finished], Any] | str | None] = None
    max_turns: ClassVar[int] = 32
    start_s: ClassVar[float] = 20.0
    reward_range = (0.0, 1.0)

    _connection: McpConnection | None = None

    async def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """Starts an episode.

        Raises ValueError for a malformed task, ConfigError for a malformed class, EnvBackendLost.
        """
        if self.server is None:
            raise ConfigError(f"{type(self).__name__} has no server", "give it a Stdio or an Http")
        self._task = task
        self._judge = self._judged_by(task)
        self._called: list[Called] = []
        self._turns = 0
        self._connection = await self._connected(self.server)
        self.tools = self.allowed_of(self._tools(self._connection))
        return Observation(f"{describe(self.tools)}\n\n{task['question']}\n{FORM}")

    async def answered(self, text: str) -> StepResult:
        """Takes the final answer, which ends the episode."""
        assert self._connection is not None
        answer = final(text)
        call = partial(self._connection.call, within_s=self.tool_timeout_s)
        finished = Finished(self._task, answer, tuple(self._called), call)
        if inspect.iscoroutinefunction(self._judge):
            reward = await self._judge(finished)
        else:
            reward = await self.in_thread(self._judge, finished)
        return StepResult("", float(reward), done=True, metrics=self._metrics(float(reward), answer))

    def called(self, calls: Sequence[Called], result: StepResult) -> StepResult:
        """Results of tools, for the agent to continue with."""
        self._called += calls
        self._turns += 1
        if self._turns < self.max_turns:
            return result
        return StepResult(result.observation, truncated=True, metrics=self._metrics(0.0, ""))

    async def close(self) -> None:
        """Ends the server's process, unless it is shared."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self, server: Server) -> McpConnection:
        count, cls = self.ready_servers, type(self)
        if not 0 <= count <= MAX_READY:
            text = f"{cls.__name__}.ready_servers is {count}"
            raise ConfigError(text, f"give a number from 0 to {MAX_READY}")
        if self.shared:
            return await McpConnection.common(server, self.start_s, cls)
        if count and isinstance(server, Stdio) and "server" not in vars(self):
            # With its identity in the key: a class that is given another server is not served the former one.
            return await McpConnection.ahead(server, self.start_s, (cls, id(server)), count)
        return await McpConnection.made(server, self.start_s)

    def _tools(self, connection: McpConnection) -> list[FunctionTool]:
        unknown = set(self.offered) - {tool.name for tool in connection.tools}
        if unknown:
            known = ", ".join(tool.name for tool in connection.tools)
            raise ConfigError(f"{self.server} has no tool {sorted(unknown)[0]!r}", f"it has {known}")
        return [
            FunctionTool(
                name=tool.name,
                description=tool.description or "",
                parameters=tool.input_schema,
                function=self._calling(connection, tool.name),
                # The connection's own bound comes first: it tells a slow tool from a lost server.
                timeout_s=self.tool_timeout_s + 2 * PROBE_S,
            )
            for tool in connection.tools
            if not self.offered or tool.name in self.offered
        ]

    def _calling(self, connection: McpConnection, tool: str) -> Callable[..., Awaitable[str]]:
        async def call(**arguments: Any) -> str:
            answer = await connection.call(tool, arguments, self.tool_timeout_s)
            if answer.is_error:
                raise ToolError(answer.text)
            return answer.text

        return call

    def _judged_by(self, task: dict[str, Any]) -> Callable[[Finished], Any]:
        if not isinstance(task.get("question"), str):
            raise ValueError(f"task key 'question' is {task.get('question')!r}, no text")
        # Taken from the class itself: a function is no method.
        verifier = inspect.getattr_static(type(self), "verifier")
        if verifier is not None:
            return _loaded(verifier.__func__ if isinstance(verifier, staticmethod) else verifier)
        if unknown := set(task) - _CHECK:
            raise ValueError(
                f"unknown task key {sorted(unknown)[0]!r}; known are {', '.join(sorted(_CHECK))}"
            )
        score = checked(task)
        return lambda finished: score(finished.answer)

    def _metrics(self, reward: float, answer: str) -> dict[str, float]:
        errors = sum(called.result.is_error for called in self._called)
        return metrics(win=reward >= 1.0, calls=len(self._called), errors=errors, answered=bool(answer))


def _loaded(verifier: Callable[[Finished], Any] | str) -> Callable[[Finished], Any]:
    """The function, or the one at "module:function". Raises ConfigError."""
    if not isinstance(verifier, str):
        return verifier
    module, _, function = verifier.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = 'give a function or "module:function"'
        raise ConfigError(f"verifier {verifier!r} cannot be imported: {error}", remedy) from error
