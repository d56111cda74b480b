"""Checks how often a service that cannot be reached is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from earl.errors import ServiceUnavailable
from earl.rpc import client as client_module
from earl.rpc.client import Client
from earl.stack.ports import free_port
from earl.v1 import env_pb2
from earl.v1.env_pb2_grpc import EnvGatewayServiceStub

HOST = "127.0.0.1"


@pytest.mark.parametrize(("retry_s", "once"), [(0.0, True), (None, False)])
async def test_retries_end_with_retry_s_or_the_deadline(
    retry_s: float | None, once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still until a second call; then the deadline has come."""
    client = Client(f"{HOST}:{free_port(HOST)}", EnvGatewayServiceStub)
    calls, method = [], client._method

    def counted(name: str) -> Any:
        calls.append(name)
        return method(name)

    client._method = counted
    clock = SimpleNamespace(monotonic=lambda: 0.0 if len(calls) < 2 else 60.0)
    monkeypatch.setattr(client_module, "time", clock)
    try:
        with pytest.raises(ServiceUnavailable, match="nothing listens there"):
            request = env_pb2.ListEnvironmentsRequest()
            await client.call("ListEnvironments", request, deadline_s=60, retry_s=retry_s)
    finally:
        await client.close()
    assert (len(calls) == 1) is once
