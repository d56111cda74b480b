"""A role's end of its pipe to the benchmark: JSON lines in, JSON lines out."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any


async def commands() -> AsyncIterator[dict[str, Any]]:
    """JSON objects of stdin, one a line, until it ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield json.loads(line)


def answer(**fields: Any) -> None:
    """Writes one JSON line to the benchmark."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def main(roles: Mapping[str, Callable[[dict[str, Any]], Coroutine[Any, Any, None]]]) -> None:
    """Run the role that the first line names until stdin ends."""
    import uvloop

    role = json.loads(sys.stdin.readline())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(roles[role["role"]](role))
