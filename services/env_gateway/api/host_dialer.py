"""Hosts that listen: the gateway dials each, and again whenever its stream has ended.

dial ─► the host's Hello ─► … ─► stream ended ─► pause, longer after each failure ─► dial
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import grpc

from earl.env.frames import Frames
from earl.errors import EarlError, ServiceUnavailable
from earl.rpc.access import OPEN, Access
from earl.rpc.client import Client
from earl.rpc.errors import from_call
from earl.v1 import env_pb2, env_pb2_grpc
from earl.waiting import cancellable
from services.env_gateway.api.streams import serve_host
from services.env_gateway.gateway import Gateway

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 3.0
# A stream that lasted this long was a good one: the next pause is a short one again.
LASTED_S = 1.0


class HostDialer:
    """Keeps a stream to the env host that listens at `address`. Raises ConfigError for a bad address."""

    def __init__(self, gateway: Gateway, address: str, access: Access = OPEN):
        self._gateway = gateway
        self._address = address
        self._client = Client(address, env_pb2_grpc.EnvHostServiceStub, token=access.token, tls=access.tls)

    async def run(self) -> None:
        """Dials until the gateway drains. What goes wrong in the same way again is logged once."""
        loop = asyncio.get_running_loop()
        backoff_s, reported = FIRST_BACKOFF_S, ""
        try:
            while not self._gateway.draining:
                began = loop.time()
                error = await self._stream()
                if loop.time() - began >= LASTED_S:
                    backoff_s, reported = FIRST_BACKOFF_S, ""
                if str(error) != reported:
                    reported = str(error)
                    log.warning("stream to the host at %s ended: %s", self._address, reported)
                await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        finally:
            await self._client.close()

    async def _stream(self) -> EarlError:
        """Serves one stream; returns why it ended."""
        call: Any = self._client.stream("Serve", deadline_s=None)
        try:
            with cancellable():
                await serve_host(self._gateway, Frames(call, env_pb2.ServeRequest))
        except grpc.aio.AioRpcError as error:
            return from_call(error, f"Serve at {self._address}")
        except EarlError as error:
            return error
        finally:
            call.cancel()
        return ServiceUnavailable(f"the host at {self._address} ended the stream", "see the host's log")
