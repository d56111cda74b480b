"""Messages of the environment stream, as the gateway writes them."""

from __future__ import annotations

from typing import Any

from earl.env.codec import failure_message
from earl.v1 import env_pb2, events_pb2
from services.env_gateway.pool import Served

PROTOCOL = 1


def served(info: env_pb2.EnvironmentInfo) -> Served:
    """What a Hello says about one environment."""
    bounded = info.HasField("min_reward") and info.HasField("max_reward")
    bounds = (info.min_reward, info.max_reward) if bounded else None
    return Served(info.name, info.schema_hash, bounds, info)


def welcome(lease_s: float, max_text_bytes: int, sessions: list[int]) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(
        welcome=env_pb2.Welcome(
            protocol=PROTOCOL, lease_s=lease_s, max_text_bytes=max_text_bytes, sessions=sessions
        )
    )


def reset(session: int, opening: env_pb2.Open, deadline_s: float) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(
        reset=env_pb2.Reset(
            session=session,
            environment=opening.environment,
            task_json=opening.task_json,
            seed=opening.seed,
            deadline_s=deadline_s,
            traceparent=opening.traceparent,
        )
    )


def step(message: env_pb2.Step) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(step=message)


def close(session: int) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(close=env_pb2.Close(session=session))


def cancel(session: int, seq: int, reason: str) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(cancel=env_pb2.Cancel(session=session, seq=seq, reason=reason))


def ping(nonce: int) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(ping=env_pb2.Ping(nonce=nonce))


def drain(grace_s: float, reason: str) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(drain=env_pb2.Drain(grace_s=grace_s, reason=reason))


def result(message: env_pb2.Result) -> env_pb2.SessionMessage:
    return env_pb2.SessionMessage(result=message)


def progress(message: env_pb2.Progress) -> env_pb2.SessionMessage:
    return env_pb2.SessionMessage(progress=message)


def failure(session: int, seq: int, ending: int, reason: str, text: str) -> env_pb2.SessionMessage:
    """A session's end without a result; with ending 0, a refusal that leaves the session as it is."""
    failed = env_pb2.Result(session=session, seq=seq, done=ending != 0, message=failure_message(reason, text))
    failed.ending = ending  # type: ignore[assignment]
    return env_pb2.SessionMessage(result=failed)


def listing(entries: dict[str, list[Any]]) -> env_pb2.ListEnvironmentsResponse:
    """entries: name → [EnvironmentInfo, hosts, capacity, open sessions]."""
    response = env_pb2.ListEnvironmentsResponse()
    for _, (info, hosts, capacity, open_sessions) in sorted(entries.items()):
        response.entries.add(environment=info, hosts=hosts, capacity=capacity, open_sessions=open_sessions)
    return response


def quarantined(source: str, environment: str, host: str, reason: str) -> events_pb2.Event:
    """The fact that a host's environment gets no sessions for a while."""
    fact = events_pb2.EnvironmentQuarantined(environment=environment, host=host, reason=reason)
    return events_pb2.Event(source=source, environment_quarantined=fact)
