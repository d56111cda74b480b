"""What the dashboard asks of a run's services, and their answers as plain values."""

from __future__ import annotations

from typing import Any

from earl.rpc.access import Access
from earl.rpc.client import Client
from earl.stack.codec import OperatorClient
from earl.stack.status import RunStatus
from earl.v1 import common_pb2, env_pb2, env_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc

# Tickets of each state that are asked for.
TICKETS = 100


class Services:
    """Addresses: host:port. A viewer's side of scheduler and gateway."""

    def __init__(self, scheduler: str, gateway: str, access: Access) -> None:
        self.scheduler = scheduler
        self._scheduler = OperatorClient(scheduler, access)
        token, tls = access.token, access.tls
        self._ledger = Client(scheduler, scheduler_pb2_grpc.SchedulerServiceStub, token=token, tls=tls)
        self._gateway = Client(gateway, env_pb2_grpc.EnvGatewayServiceStub, token=token, tls=tls)

    async def status(self, deadline_s: float) -> RunStatus:
        """Raises EarlError, as all of these do."""
        return await self._scheduler.status(deadline_s)

    async def tickets(self, deadline_s: float) -> dict[str, Any]:
        """Those that are under way, the longest in their state first."""
        request = scheduler_pb2.ListTicketsRequest(limit=TICKETS)
        answer = await self._ledger.call("ListTickets", request, deadline_s=deadline_s)
        return {"rows": [ticket(state) for state in answer.tickets]}

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
        for client in (self._scheduler, self._ledger, self._gateway):
            await client.close()


def ticket(state: Any) -> dict[str, Any]:
    return {
        "ticket": state.ticket_id,
        "group": state.group_id,
        "purpose": name_of(common_pb2.Purpose, state.purpose, "PURPOSE_"),
        "evaluation": state.evaluation,
        "state": name_of(scheduler_pb2.TicketState, state.state, "TICKET_STATE_"),
        "attempt": state.attempt,
        "worker": state.worker,
        "tokens": state.tokens,
        "age_s": round(state.age_s, 1),
    }


def name_of(kind: Any, number: int, prefix: str) -> str:
    """For example "leased"; a number that this version does not know stays one."""
    try:
        return kind.Name(number).removeprefix(prefix).lower()
    except ValueError:
        return str(number)


def environment(entry: Any) -> dict[str, Any]:
    return {
        "name": entry.environment.name,
        "hosts": entry.hosts,
        "capacity": entry.capacity,
        "open": entry.open_sessions,
        "queued": entry.queued,
        "quarantined": entry.quarantined,
    }


def host(state: Any) -> dict[str, Any]:
    return {
        "name": state.host,
        "capacity": state.capacity,
        "open": state.open_sessions,
        "faults": state.faults,
        "quarantined": list(state.quarantined),
        "draining": state.draining,
        "attached": state.attached,
    }
