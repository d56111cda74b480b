"""A connection to an MCP server (package mcp): its tools, and calls of them. mcp.py makes episodes of it.

    server = Stdio([sys.executable, "server.py"])            a process that speaks over stdin and stdout
    server = Http("http://127.0.0.1:8000/mcp")               streamable HTTP

The agent may see a tool's result, also one that is an error, arguments that the server
refuses and a tool that takes too long. Everything else is EnvBackendLost: a server that died, is gone, fails
or answers nothing any more. A process of a server gets the few environment variables that the package deems
safe and those it is given, and is ended with its connection.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types  # pyright: ignore[reportMissingImports]
from mcp.client import Client  # pyright: ignore[reportMissingImports]
from mcp.client.stdio import StdioServerParameters, stdio_client  # pyright: ignore[reportMissingImports]
from mcp.client.streamable_http import streamable_http_client  # pyright: ignore[reportMissingImports]
from mcp.shared._httpx_utils import create_mcp_http_client  # pyright: ignore[reportMissingImports]
from mcp.shared.exceptions import MCPError  # pyright: ignore[reportMissingImports]

from earl.env.adapters.open_context import Kept, shared
from earl.env.adapters.ready_contexts import ReadyContexts, ready_contexts
from earl.errors import EnvBackendLost

MAX_TOOLS = 256
# A tool took too long: within this time the server must say that it is alive, or it is lost.
PROBE_S = 5.0
# What a connection gets for its own time-out, which tells the server, before it is given up on.
_MARGIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Stdio:
    """command: the server's program and its arguments. env: variables in addition to the safe ones."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None

    def __str__(self) -> str:
        return f"MCP server {' '.join(self.command)[:120]!r}"


@dataclass(frozen=True, slots=True)
class Http:
    """url: of the server's MCP endpoint. headers: sent with every request, for example a bearer token."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"MCP server {self.url}"


Server = Stdio | Http


@dataclass(frozen=True, slots=True)
class McpAnswer:
    """A tool's answer; is_error: the tool did not do what it was asked to."""

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class _Open:
    client: Client
    tools: list[types.Tool]


class McpConnection:
    """A server that is connected to, with its tools. Used on one loop, by any task of it."""

    def __init__(self, server: Server, kept: Kept[_Open], opened: _Open, owned: bool) -> None:
        self.tools = opened.tools
        self._server = server
        self._kept = kept
        self._client = opened.client
        self._owned = owned

    @classmethod
    async def made(cls, server: Server, start_s: float) -> McpConnection:
        """Starts the server, or connects to it, within start_s. Raises EnvBackendLost."""
        kept = Kept(lambda: _open_server(server), str(server))
        try:
            return cls(server, kept, await kept.entered(start_s), owned=True)
        except BaseException:
            await kept.close()
            raise

    @classmethod
    async def common(cls, server: Server, start_s: float, key: Hashable) -> McpConnection:
        """The same, but all of one key share one connection, and so one process, which stays."""
        kept = shared(key, lambda: _open_server(server), str(server))
        return cls(server, kept, await kept.entered(start_s), owned=False)

    @classmethod
    async def ahead(cls, server: Server, start_s: float, key: Hashable, count: int) -> McpConnection:
        """The same as `made`, but with a server that was started before, if one is there and answers.

        Of one key `count` servers wait, on each loop; they are all the same `server`.
        """

        def create() -> ReadyContexts[_Open]:
            return ReadyContexts(lambda: _open_server(server), str(server), count, start_s, _is_alive)

        kept, opened = await ready_contexts(key, create).take()
        return cls(server, kept, opened, owned=True)

    async def call(self, tool: str, arguments: dict[str, Any], within_s: float) -> McpAnswer:
        """The tool's answer. Raises EnvBackendLost."""
        request = self._client.call_tool(tool, arguments, read_timeout_seconds=within_s)
        try:
            return _answer(await self._kept.during(request, within_s + _MARGIN_S))
        except TimeoutError:
            return await self._too_long(tool, within_s)
        except MCPError as error:
            if error.code == types.REQUEST_TIMEOUT:
                return await self._too_long(tool, within_s)
            if error.code == types.INVALID_PARAMS:
                return McpAnswer(error.message, is_error=True)
            raise EnvBackendLost(f"{self._server} failed in a call of {tool}: {error.message}") from error

    async def _too_long(self, tool: str, within_s: float) -> McpAnswer:
        """The tool is slow if the server still lists its tools, otherwise the server is lost."""
        try:
            await self._kept.during(_probed(self._client), PROBE_S)
        except (TimeoutError, MCPError) as error:
            text = f"{self._server} answered nothing for {within_s + PROBE_S:g} s, in a call of {tool}"
            raise EnvBackendLost(text, "see what its tool does") from error
        return McpAnswer(f"{tool} took longer than {within_s:g} s", is_error=True)

    async def close(self) -> None:
        """Ends the connection, and the process that was started for it; a shared one stays. Bounded."""
        if self._owned:
            await self._kept.close()


@asynccontextmanager
async def _open_server(server: Server) -> AsyncIterator[_Open]:
    async with AsyncExitStack() as stack:
        if isinstance(server, Stdio):
            program, *arguments = server.command
            parameters = StdioServerParameters(
                command=program, args=arguments, env=dict(server.env), cwd=server.cwd
            )
            transport = stdio_client(parameters, errlog=sys.stderr)
        else:
            http = await stack.enter_async_context(create_mcp_http_client(headers=dict(server.headers)))
            transport = streamable_http_client(server.url, http_client=http)
        client = await stack.enter_async_context(Client(transport))
        yield _Open(client, await _list_tools(client, server))


async def _probed(client: Client) -> None:
    """Asks the server for something that no tool delays. Raises MCPError."""
    await client.list_tools(cache_mode="bypass")


async def _is_alive(opened: _Open) -> bool:
    """Returns whether a server that waited is still there."""
    try:
        await _probed(opened.client)
    except MCPError:
        return False
    return True


async def _list_tools(client: Client, server: Server) -> list[types.Tool]:
    tools: list[types.Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if len(tools) > MAX_TOOLS:
            raise EnvBackendLost(f"{server} has more than {MAX_TOOLS} tools", "offer fewer")
        cursor = page.next_cursor
        if cursor is None:
            return tools


def _answer(result: types.CallToolResult) -> McpAnswer:
    """Text as it is; of anything else its kind; structured content where there is nothing else."""
    parts = [
        block.text if isinstance(block, types.TextContent) else f"[{block.type}]" for block in result.content
    ]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, sort_keys=True, ensure_ascii=False)]
    return McpAnswer("\n".join(parts), result.is_error)
