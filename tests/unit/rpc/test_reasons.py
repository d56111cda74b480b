"""Checks why gRPC itself failed a call, in words."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from earl import errors
from earl.rpc import Client
from earl.v1 import env_pb2, env_pb2_grpc
from tests.support.paths import ROOT

REQUEST = env_pb2.ListEnvironmentsRequest()


async def reason(address: str) -> str:
    client = Client(address, env_pb2_grpc.EnvGatewayServiceStub)
    with pytest.raises(errors.ServiceUnavailable) as caught:
        await client.call("ListEnvironments", REQUEST, deadline_s=60, retry_s=0.0)
    await client.close()
    return str(caught.value)


async def test_what_nobody_listens_at_and_what_has_no_address():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert f"ListEnvironments at {address} failed: nothing listens there;" in await reason(address)
    assert "failed: its host name is not known;" in await reason("no-such-host.invalid:7000")


def test_a_terminal_without_a_character_gets_a_question_mark():
    done = subprocess.run(
        [sys.executable, "-m", "earl.cli.main", "env", "list", "--gateway", "ümläut:7000"],
        capture_output=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        timeout=60,
        check=False,
    )
    assert done.stderr.startswith(b"earl: error: ") and len(done.stderr.splitlines()) == 1, done.stderr
