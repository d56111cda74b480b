"""Environments over the MCP server of mcp_side.py, for a host that a test starts."""

import os
import sys

from earl.env.adapters.mcp import Finished, Http, McpEnvironment, Stdio

SIDE = Stdio(
    [sys.executable, "-m", "tests.envs.mcp_side"], env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
)


class Sums(McpEnvironment):
    """A server for each episode; quick bounds."""

    name = "mcp/sums"
    server = SIDE
    ready_servers = 0
    tool_timeout_s = 10.0


class Together(Sums):
    """One server for all episodes of the host."""

    name = "mcp/together"
    shared = True


class Ahead(Sums):
    """Servers that are started ahead of their episodes."""

    name = "mcp/ahead"
    ready_servers = 2


class Remote(Sums):
    """A server that listens."""

    name = "mcp/remote"
    server = Http(f"http://127.0.0.1:{os.environ.get('MCP_SIDE_PORT', '1')}/mcp")


async def kept(finished: Finished) -> float:
    """Returns whether the server holds the note that the task asked for; half of it for the answer alone."""
    if finished.task["question"] == "broken":
        raise RuntimeError("the verifier is broken")
    state = await finished.call("notes", {})
    return 0.5 * (finished.task["wanted"] in state.text) + 0.5 * (finished.answer == "done")


class Notes(Sums):
    """Judged by what is left behind in the server; few turns, and not every tool."""

    name = "mcp/notes"
    verifier = "tests.envs.mcp_classes:kept"
    offered = ("note", "add")
    max_turns = 2


class Impatient(Sums):
    """Tools get two seconds."""

    name = "mcp/impatient"
    tool_timeout_s = 2.0


class Nowhere(Sums):
    """Its server's program is not there."""

    name = "mcp/nowhere"
    server = Stdio(["/nonexistent/server"])


ALL = [Sums, Together, Ahead, Remote, Notes, Impatient, Nowhere]
