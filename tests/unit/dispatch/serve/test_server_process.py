"""The serving process: where it may listen, the address that readers are told, and what follows its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.memory.arena import Arena
from earl.dispatch.serve.server_process import LONGEST_PAUSE_S, STARTS, ServingProcess
from earl.errors import InsecureBind, TransportUnavailable
from tests.support.clock import stopped_clock


async def test_off_loopback_needs_a_trusted_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    arena = Arena.create(tmp_path / "arenas", "o", 1, 1 << 20)
    for bind in ("10.0.0.1", "0.0.0.0"):
        with pytest.raises(InsecureBind, match="trusted_network"):
            await ServingProcess.start(arena.ref, DataPlaneConfig(transport="ucx", bind=bind), b"s")
    monkeypatch.setenv("EARL_ADVERTISE", "10.0.0.7")
    config = DataPlaneConfig(transport="ucx", bind="0.0.0.0", trusted_network=True)
    serving = await ServingProcess.start(arena.ref, config, b"s")
    try:
        assert serving.address.startswith("10.0.0.7:")
    finally:
        await serving.stop()
        arena.close()


class Served:
    """A process that has ended with this code; None: one that serves on."""

    def __init__(self, code: int | None) -> None:
        self.returncode, self.pid, self.stdin = code, 1, None

    async def wait(self) -> int:
        if self.returncode is None:
            await asyncio.get_running_loop().create_future()
        assert self.returncode is not None
        return self.returncode


async def restarted(starts: Sequence[int | None]) -> ServingProcess:
    """A serving process that crashed, after these starts: an exit code, or None for one that fails."""
    answers = iter(starts)

    async def spawn(*, port: int) -> tuple[Any, str]:
        assert port == 77
        code = next(answers)
        if code is None:
            raise TransportUnavailable("the port is taken")
        return Served(code or None), "127.0.0.1:77"

    with stopped_clock() as advance:
        serving = ServingProcess("o", spawn, cast(Any, Served(-11)), "127.0.0.1:77")
        while serving._process.returncode is not None and not serving._watching.done():
            await asyncio.sleep(0)
            advance(LONGEST_PAUSE_S / 10)
    return serving


async def test_a_serving_process_that_keeps_dying_is_started_again_and_again():
    serving = await restarted([-11] * 50 + [0])
    assert serving.restarts == 51
    serving._watching.cancel()


async def test_starts_that_fail_now_and_then_are_repeated():
    serving = await restarted([*[None] * (STARTS - 1), -11, *[None] * (STARTS - 1), 0])
    assert serving.restarts == 2
    serving._watching.cancel()


async def test_an_arena_that_cannot_be_served_any_more_ends_its_owner():
    serving = await restarted([None] * STARTS)
    with pytest.raises(TransportUnavailable, match="o is not served any more: the port is taken"):
        await serving.ended()
