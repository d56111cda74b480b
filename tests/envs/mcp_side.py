"""An MCP server, written with the package's SDK: `python -m tests.envs.mcp_side [PORT]`; none is stdio."""

import asyncio
import os
import signal
import sys

from mcp.server.mcpserver import MCPServer  # pyright: ignore[reportMissingImports]

server = MCPServer("sums")
noted: list[str] = []


@server.tool()
def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


@server.tool()
def note(text: str) -> str:
    """Keeps a note."""
    noted.append(text)
    return f"{len(noted)} kept"


@server.tool()
def notes() -> str:
    """All notes, and the process that keeps them."""
    return " ".join([str(os.getpid()), *noted])


@server.tool()
def divide(a: float, b: float) -> float:
    """A quotient."""
    return a / b


@server.tool()
async def wait(seconds: float) -> str:
    """Takes its time, and nobody else's."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
async def die() -> str:
    """Ends the server in the middle of a call."""
    os._exit(3)


@server.tool()
async def freeze() -> str:
    """Stops the whole process: nothing answers any more."""
    os.kill(os.getpid(), signal.SIGSTOP)
    return "never"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
