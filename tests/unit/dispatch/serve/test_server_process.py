"""The serving process: where it may listen, and the address that readers are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from earl.config.data_plane import DataPlaneConfig
from earl.dispatch.memory.arena import Arena
from earl.dispatch.serve.server_process import ServingProcess
from earl.errors import InsecureBind


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
