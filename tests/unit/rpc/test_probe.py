"""`python -m earl.rpc.probe`, which containers ask with: it says what the service says of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from earl.errors import ConfigError
from earl.rpc import Server, probe
from earl.v1 import env_pb2_grpc
from tests.support.certificates import certified

SERVICE = "earl.v1.EnvGatewayService"


def serving(**options) -> Server:
    server = Server("probed", "127.0.0.1:0", **options)
    add = env_pb2_grpc.add_EnvGatewayServiceServicer_to_server
    server.add(add, env_pb2_grpc.EnvGatewayServiceServicer(), SERVICE)
    return server


async def asked(address: str, service: str = "") -> str:
    return await asyncio.to_thread(probe.verdict, address, service, 5.0)


@pytest.fixture(autouse=True)
def no_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("EARL_TLS_CERT", "EARL_TLS_KEY", "EARL_TLS_CA"):
        monkeypatch.delenv(variable, raising=False)


async def test_a_probe_says_what_the_service_says() -> None:
    server = serving()
    address = await server.start()
    assert await asked(address) == await asked(address, SERVICE) == ""
    await server.set_serving(SERVICE, False)
    assert await asked(address) == "NOT_SERVING"
    assert "NOT_FOUND" in await asked(address, "earl.v1.Nothing")
    await server.stop()
    assert "UNAVAILABLE" in await asked(address)
    with pytest.raises(ConfigError, match="host:port"):
        probe.verdict("nowhere", "", 1.0)


async def test_a_probe_trusts_the_authority_that_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tls = certified(tmp_path)
    server = serving(tls=tls)
    address = await server.start()
    try:
        assert "UNAVAILABLE" in await asked(address)
        monkeypatch.setenv("EARL_TLS_CA", str(tls.authority))
        assert await asked(address) == ""
    finally:
        await server.stop()
