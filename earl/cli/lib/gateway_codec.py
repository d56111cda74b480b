"""A gateway's listing of its environments, as plain values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from earl.env.conformance.offered_tools import tools_of
from earl.message_fields import from_message
from earl.rpc.access import Access
from earl.rpc.client import Client
from earl.v1 import env_pb2, env_pb2_grpc

CALL_S = 10.0
# Somebody waits for the answer: a gateway that is only starting is told as one that is not there.
RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class HostLatency:
    """Quantiles in seconds of what hosts answered since the gateway began, at most twice too long; else 0.

    counts: by size, as `Histogram` has them; empty for a gateway that does not report them.
    """

    count: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    counts: tuple[int, ...] = ()
    longest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GatewayEnvironment:
    """One environment at a gateway. queued: sessions that wait for a host; quarantined: hosts that get none
    for a while. reward_range: [least, most], None if unbounded. tools: JSON schemas of its functions.
    reset, step: how long they take. faults: of all its hosts since the gateway began; commonest_count: of
    those with the text of commonest_fault. quarantines: a sentence for each host that is in one, of a bounded
    number. available_hosts: hosts that may get sessions of it, with or without free capacity. oldest_wait_s:
    how long the session that has waited longest has been queued, 0 for a gateway that does not report it."""

    name: str
    description: str
    schema_hash: str
    reward_range: tuple[float, float] | None
    tools: list[dict[str, Any]]
    hosts: int
    capacity: int
    open: int
    queued: int
    quarantined: int
    reset: HostLatency = HostLatency()
    step: HostLatency = HostLatency()
    faults: int = 0
    last_fault: str = ""
    commonest_fault: str = ""
    commonest_count: int = 0
    quarantines: tuple[str, ...] = ()
    available_hosts: int = 0
    oldest_wait_s: float = 0.0


class GatewayViewer:
    """A viewer's side of EnvGatewayService."""

    def __init__(self, address: str, access: Access) -> None:
        stub = env_pb2_grpc.EnvGatewayServiceStub
        self._client = Client(address, stub, token=access.token, tls=access.tls)

    async def listed(self, deadline_s: float, retry_s: float | None = None) -> list[GatewayEnvironment]:
        """The environments that attached hosts serve. retry_s: as of Client.call.

        Raises ServiceUnavailable, Unauthenticated, DeadlineExceeded.
        """
        request = env_pb2.ListEnvironmentsRequest()
        response = await self._client.call(
            "ListEnvironments", request, deadline_s=deadline_s, retry_s=retry_s
        )
        return [environment_of(entry) for entry in response.entries]

    async def close(self) -> None:
        await self._client.close()


async def list_environments(gateway: str, access: Access, deadline_s: float) -> list[GatewayEnvironment]:
    """The same in one call, for a command: where no gateway can be reached, after RETRY_S."""
    client = GatewayViewer(gateway, access)
    try:
        return await client.listed(deadline_s, RETRY_S)
    finally:
        await client.close()


def environment_of(entry: Any) -> GatewayEnvironment:
    """Decodes an entry of a ListEnvironmentsResponse."""
    info = entry.environment
    bounded = info.HasField("min_reward") and info.HasField("max_reward")
    return from_message(
        GatewayEnvironment,
        entry,
        name=info.name,
        description=info.description,
        schema_hash=info.schema_hash,
        reward_range=(info.min_reward, info.max_reward) if bounded else None,
        tools=[dict(tool) for tool in tools_of(info)],
        open=entry.open_sessions,
        reset=from_message(HostLatency, entry.reset),
        step=from_message(HostLatency, entry.step),
        faults=entry.faults.count,
        last_fault=entry.faults.last,
        commonest_fault=entry.faults.commonest,
        commonest_count=entry.faults.commonest_count,
    )


def signature(tool: Any) -> str:
    """A tool as a person reads it: calculator(expression: string)."""
    parameters = tool.get("parameters") or {}
    required = parameters.get("required", ())
    shown = [
        f"{name}{'' if name in required else '?'}: {_kind(schema)}"
        for name, schema in (parameters.get("properties") or {}).items()
    ]
    return f"{tool['name']}({', '.join(shown)})"


def _kind(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "any"
    if schema.get("enum"):
        return " | ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type", "any")
    return " | ".join(kind) if isinstance(kind, list) else str(kind)
