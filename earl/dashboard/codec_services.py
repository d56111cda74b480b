"""The dashboard's requests to a run's services, and their answers as plain values."""

from __future__ import annotations

from typing import Any

from earl.rpc.access import Access
from earl.rpc.client import Client
from earl.stack.codec import OperatorClient
from earl.stack.status import RunStatus
from earl.v1 import common_pb2, env_pb2, env_pb2_grpc, scheduler_pb2

# Tickets of each state that are requested.
TICKETS = 100


class Services:
    """A viewer's clients of scheduler and gateway, each at a host:port."""

    def __init__(self, scheduler: str, gateway: str, access: Access) -> None:
        self.scheduler = scheduler
        self._scheduler = OperatorClient(scheduler, access)
        stub = env_pb2_grpc.EnvGatewayServiceStub
        self._gateway = Client(gateway, stub, token=access.token, tls=access.tls)

    async def status(self, deadline_s: float) -> RunStatus:
        """The run's status. Raises EarlError, as all methods do."""
        return await self._scheduler.status(deadline_s)

    async def tickets(self, deadline_s: float) -> dict[str, Any]:
        """The tickets in progress, those longest in their state first."""
        tickets = await self._scheduler.tickets(TICKETS, deadline_s)
        return {"rows": [ticket(state) for state in tickets]}

    async def gateway(self, deadline_s: float) -> dict[str, Any]:
        """Environments and the hosts that serve them."""
        request = env_pb2.ListEnvironmentsRequest()
        answer = await self._gateway.call("ListEnvironments", request, deadline_s=deadline_s)
        hosts = await self._gateway.call("ListHosts", env_pb2.ListHostsRequest(), deadline_s=deadline_s)
        return {
            "environments": [environment(entry) for entry in answer.entries],
            "rows": [host(state) for state in hosts.hosts],
            "waits": {
                "count": hosts.waits,
                "p50": hosts.wait_p50_s,
                "p99": hosts.wait_p99_s,
                "longest": hosts.wait_longest_s,
            },
            "totals": dict(hosts.totals),
            "refused": dict(hosts.refused),
        }

    async def close(self) -> None:
        for client in (self._scheduler, self._gateway):
            await client.close()


def ticket(state: Any) -> dict[str, Any]:
    return values(state, "evaluation", "attempt", "worker", "tokens") | {
        "ticket": state.ticket_id,
        "group": state.group_id,
        "purpose": name_of(common_pb2.Purpose, state.purpose, "PURPOSE_"),
        "state": name_of(scheduler_pb2.TicketState, state.state, "TICKET_STATE_"),
        "age_s": round(state.age_s, 1),
    }


def name_of(kind: Any, number: int, prefix: str) -> str:
    """The name of an enum's number, for example "leased"; an unknown number stays a number."""
    try:
        return kind.Name(number).removeprefix(prefix).lower()
    except ValueError:
        return str(number)


def environment(entry: Any) -> dict[str, Any]:
    named = {"name": entry.environment.name, "open": entry.open_sessions}
    return named | values(entry, "hosts", "capacity", "queued", "quarantined")


def host(state: Any) -> dict[str, Any]:
    named = {"name": state.host, "open": state.open_sessions, "quarantined": list(state.quarantined)}
    return named | values(state, "capacity", "faults", "draining", "attached")


def values(message: Any, *names: str) -> dict[str, Any]:
    """The fields of a message by their names."""
    return {name: getattr(message, name) for name in names}
