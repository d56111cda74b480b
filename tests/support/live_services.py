"""A scheduler and a gateway that tell the page what a test gives them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from earl.rpc import Server
from earl.v1 import env_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc
from tests.support.gateway_world import World


class Gateway(env_pb2_grpc.EnvGatewayServiceServicer):
    """The lists of a gateway whose clock and hosts the test has."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def ListEnvironments(self, request, context):
        return self._world.gateway.listing()

    async def ListHosts(self, request, context):
        return self._world.gateway.hosts()


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """A scheduler of a run without tickets. status: its answer, which the test may change."""

    def __init__(self, run: str) -> None:
        self.status = scheduler_pb2.GetStatusResponse(run=run, phase="train", steps=10)

    async def GetStatus(self, request, context):
        return self.status

    async def ListTickets(self, request, context):
        return scheduler_pb2.ListTicketsResponse()


@contextlib.asynccontextmanager
async def listening(scheduler: Scheduler, world: World) -> AsyncIterator[str]:
    """Yields the address at which both services answer."""
    server = Server("test", "127.0.0.1:0")
    server.add(
        env_pb2_grpc.add_EnvGatewayServiceServicer_to_server, Gateway(world), "earl.v1.EnvGatewayService"
    )
    server.add(
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server, scheduler, "earl.v1.SchedulerService"
    )
    yield await server.start()
    await server.stop()
