"""What a gateway's listing says, as plain values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from earl.env.conformance.acts import tools_of
from earl.rpc.access import Access
from earl.rpc.client import Client
from earl.v1 import env_pb2, env_pb2_grpc

CALL_S = 10.0


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles in seconds of what hosts answered since the gateway began, at most twice too long; else 0.

    counts: by size, as `Histogram` has them; empty of a gateway that does not say.
    """

    count: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    counts: tuple[int, ...] = ()
    longest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Listed:
    """One environment at a gateway. queued: sessions that wait for a host; quarantined: hosts that get none
    for a while. reward_range: [least, most], None if unbounded. tools: JSON schemas of its functions.
    reset, step: how long they take."""

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
    reset: Latency = Latency()
    step: Latency = Latency()


class Gateway:
    """A viewer's side of EnvGatewayService."""

    def __init__(self, address: str, access: Access) -> None:
        stub = env_pb2_grpc.EnvGatewayServiceStub
        self._client = Client(address, stub, token=access.token, tls=access.tls)

    async def listed(self, deadline_s: float) -> list[Listed]:
        """What attached hosts serve. Raises ServiceUnavailable, Unauthenticated, DeadlineExceeded."""
        request = env_pb2.ListEnvironmentsRequest()
        response = await self._client.call("ListEnvironments", request, deadline_s=deadline_s)
        return [_listed(entry) for entry in response.entries]

    async def close(self) -> None:
        await self._client.close()


async def listed(gateway: str, access: Access, deadline_s: float) -> list[Listed]:
    """The same in one call."""
    client = Gateway(gateway, access)
    try:
        return await client.listed(deadline_s)
    finally:
        await client.close()


def _listed(entry: Any) -> Listed:
    info = entry.environment
    bounded = info.HasField("min_reward") and info.HasField("max_reward")
    return Listed(
        info.name,
        info.description,
        info.schema_hash,
        (info.min_reward, info.max_reward) if bounded else None,
        [dict(tool) for tool in tools_of(info)],
        entry.hosts,
        entry.capacity,
        entry.open_sessions,
        entry.queued,
        entry.quarantined,
        _latency(entry.reset),
        _latency(entry.step),
    )


def _latency(sent: Any) -> Latency:
    return Latency(sent.count, sent.p50_s, sent.p99_s, tuple(sent.counts), sent.longest_s)


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
