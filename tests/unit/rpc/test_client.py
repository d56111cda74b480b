"""How often a service that cannot be reached is called."""

from __future__ import annotations

from typing import Any

import pytest

from earl.errors import ServiceUnavailable
from earl.rpc.client import Client
from earl.stack.ports import free_port
from earl.v1 import env_pb2
from earl.v1.env_pb2_grpc import EnvGatewayServiceStub

HOST = "127.0.0.1"


@pytest.mark.parametrize(("retry_s", "once"), [(0.0, True), (None, False)])
async def test_retries_end_with_retry_s_or_the_deadline(retry_s: float | None, once: bool) -> None:
    client = Client(f"{HOST}:{free_port(HOST)}", EnvGatewayServiceStub)
    calls, method = [], client._method

    def counted(name: str) -> Any:
        calls.append(name)
        return method(name)

    client._method = counted
    try:
        with pytest.raises(ServiceUnavailable, match="nothing listens there"):
            request = env_pb2.ListEnvironmentsRequest()
            await client.call("ListEnvironments", request, deadline_s=0.5, retry_s=retry_s)
    finally:
        await client.close()
    assert (len(calls) == 1) is once
