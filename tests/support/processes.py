"""Ranks as processes in torch's environment, each running a function of tests.support."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from earl.stack.ports import free_port
from tests.support.forked import Forked


def _rank(pipe: Connection, variables: dict[str, str], main: Callable[..., None], *arguments: Any) -> None:
    os.environ.update(variables)
    main(pipe, *arguments)


@contextmanager
def ranks(main: Callable[..., None], count: int, *arguments: Any) -> Iterator[list[Forked]]:
    """Processes that run `main(pipe, *arguments)` as ranks of one group; leaving ends whatever still runs."""
    port = str(free_port("127.0.0.1"))
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    started = [Forked(_rank, group | {"RANK": str(rank)}, main, *arguments) for rank in range(count)]
    try:
        yield started
    finally:
        for rank in started:
            rank.kill()


def run_ranks(main: Callable[..., None], count: int, *arguments: Any, timeout_s: float = 100.0) -> list[Any]:
    """Returns what each rank sent first, in order of the ranks, all of which have ended with exit code 0."""
    with ranks(main, count, *arguments) as started:
        results = [rank.receive(timeout_s) for rank in started]
        assert [rank.wait(timeout_s) for rank in started] == [0] * count
        return results
