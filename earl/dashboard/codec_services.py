"""The dashboard's requests to a run's services, and their answers as plain values."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from earl.cli.lib.concerns import quarantines, waits
from earl.cli.lib.gateway_codec import GatewayEnvironment, environment_of
from earl.rpc.access import Access
from earl.rpc.client import Client
from earl.stack.codec import OperatorClient
from earl.stack.status import RunStatus
from earl.v1 import common_pb2, env_pb2, env_pb2_grpc, scheduler_pb2
from earl.visible import visible

# Tickets of each state that are requested.
TICKETS = 100
# Hosts, and environments, that are shown at most; and characters of a text that a host may choose.
ROWS, CHARACTERS = 200, 300


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
        """Environments and the hosts that serve them; see `fleet`."""
        request = env_pb2.ListEnvironmentsRequest()
        answer = await self._gateway.call("ListEnvironments", request, deadline_s=deadline_s)
        hosts = await self._gateway.call("ListHosts", env_pb2.ListHostsRequest(), deadline_s=deadline_s)
        return fleet([environment_of(entry) for entry in answer.entries], hosts, time.time())

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


def fleet(environments: Sequence[GatewayEnvironment], hosts: Any, now_s: float) -> dict[str, Any]:
    """The hosts and faults that a gateway lists, at most ROWS of each; `more`: the others.

    Those with something wrong come first.

    waiting: sentences about episodes that no host can take; quarantines: about hosts without sessions; both
    as commands word them. served: names of the environments that have a host. now_s: Unix seconds.
    """
    rows = sorted((host(state, now_s) for state in hosts.hosts), key=lambda row: not row["wrong"])
    shown = sorted(environments, key=lambda entry: not (entry.queued or entry.quarantined or entry.faults))
    return {
        "environments": [environment(entry) for entry in shown[:ROWS]],
        "rows": rows[:ROWS],
        "more": {"hosts": len(rows[ROWS:]), "environments": len(shown[ROWS:])},
        "waiting": [beginning(text) for entry in environments for text in waits(entry)][:ROWS],
        "quarantines": [beginning(text) for entry in environments for text in quarantines(entry)][:ROWS],
        "served": sorted(visible(entry.name) for entry in environments if entry.hosts)[:ROWS],
        "waits": {
            "count": hosts.waits,
            "p50": hosts.wait_p50_s,
            "p99": hosts.wait_p99_s,
            "longest": hosts.wait_longest_s,
        },
        "totals": dict(hosts.totals),
        "refused": dict(hosts.refused),
    }


def environment(entry: GatewayEnvironment) -> dict[str, Any]:
    shown = values(entry, "open", "hosts", "capacity", "queued", "quarantined", "faults", "commonest_count")
    texts = values(entry, "name", "last_fault", "commonest_fault")
    return shown | {name: beginning(text) for name, text in texts.items()}


def host(state: Any, now_s: float) -> dict[str, Any]:
    """A host's row. quarantines: each with `until`, Unix seconds; more: those that the gateway only counts;
    wrong: whether it takes fewer sessions than it could."""
    connection = "reconnecting" if not state.attached else "draining" if state.draining else "attached"
    held = [
        {
            "environment": beginning(quarantine.environment),
            "until": round(now_s + quarantine.left_s),
            "reason": beginning(quarantine.reason),
        }
        for quarantine in state.quarantines[:ROWS]
    ]
    probation = [beginning(name) for name in state.on_probation[:ROWS]]
    return {
        **values(state, "capacity", "faults"),
        "name": beginning(state.host),
        "open": state.open_sessions,
        "state": connection,
        "quarantines": held,
        "more": max(0, len(state.quarantined) - len(held)),
        "probation": probation,
        "wrong": bool(held or probation or connection != "attached"),
    }


def beginning(text: str) -> str:
    """The first CHARACTERS of a text that a host or an environment may have chosen, safe to show."""
    return visible(text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…")


def values(message: Any, *names: str) -> dict[str, Any]:
    """The fields of a message by their names."""
    return {name: getattr(message, name) for name in names}
