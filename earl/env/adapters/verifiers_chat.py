"""The chat loop of verifiers' harness `null`, in the env host's own process.

verifiers runs this loop as a program, for which uv makes an environment: a process and its imports for every
episode, and downloads the first time. A harness may run its loop itself, as long as every call of the model
goes through the endpoint that it is given; this one does so, and calls tools as the program does.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import openai  # pyright: ignore[reportMissingImports]
from verifiers.v1 import ProgramResult  # pyright: ignore[reportMissingImports]
from verifiers.v1.dialects.chat import message_to_wire  # pyright: ignore[reportMissingImports]
from verifiers.v1.harnesses.null.harness import NullHarness  # pyright: ignore[reportMissingImports]
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp  # pyright: ignore[reportMissingImports]

_TOOLS_S = 60.0


class InProcess(NullHarness):
    """`null` without its process: system prompt, prompt, then turns until one calls no tool."""

    SUPPORTS_TOOL_INTERCEPTION = False

    async def setup(self, runtime: Any) -> None:
        """Does nothing: an in-process harness has no program to prepare."""

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> ProgramResult:
        """One segment; exit code 1 where a call of the model was refused, by a limit or a stop."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or []]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(_TOOLS_S):
                tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            model = openai.AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None, max_retries=0)
            await stack.enter_async_context(model)
            while True:
                try:
                    completion = await model.chat.completions.create(
                        model=ctx.model, messages=messages, tools=tools or openai.omit
                    )
                except openai.APIError as error:
                    return ProgramResult(exit_code=1, stdout="", stderr=str(error))
                message = completion.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return ProgramResult(exit_code=0, stdout="", stderr="")
                for call in message.tool_calls:
                    messages.append(await _called(call, connections, dispatch))


async def _called(call: Any, servers: dict[str, Any], dispatch: dict[str, Any]) -> dict[str, Any]:
    name, encoded = call.function.name, call.function.arguments
    try:
        arguments = json.loads(encoded or "{}")
    except ValueError as error:
        arguments, content = None, f"error: the arguments are not JSON: {error}"
    else:
        content = "error: the arguments are no object"
    if isinstance(arguments, dict):
        if name in dispatch:
            content = await call_mcp(servers, dispatch, name, arguments)
        else:
            content = f"error: no tool {name!r}"
    return {"role": "tool", "tool_call_id": call.id, "content": content}
