"""Messages to an env host on the environment stream: by a gateway, an examiner, or a host to its own
process."""

from __future__ import annotations

from collections.abc import Sequence

from earl.env.codec import PROTOCOL, action_message
from earl.env.tool_calls import MAX_CHARACTERS
from earl.v1 import env_pb2


def welcome(
    lease_s: float,
    max_text_bytes: int,
    sessions: Sequence[int],
    max_action_characters: int = MAX_CHARACTERS,
) -> env_pb2.GatewayMessage:
    """The answer to a Hello. sessions: those of the host that are still held."""
    message = env_pb2.Welcome(
        protocol=PROTOCOL,
        lease_s=lease_s,
        max_text_bytes=max_text_bytes,
        sessions=sessions,
        max_action_characters=max_action_characters,
    )
    return env_pb2.GatewayMessage(welcome=message)


def reset(
    session: int,
    environment: str,
    task_json: str,
    seed: int,
    deadline_s: float = 0.0,
    traceparent: str = "",
    seats: int = 0,
    tools: Sequence[str] = (),
) -> env_pb2.GatewayMessage:
    """The message that starts an episode; `deadline_s` 0 for none, `seats` 0 for one, no `tools` for all."""
    message = env_pb2.Reset(
        session=session,
        environment=environment,
        task_json=task_json,
        seed=seed,
        deadline_s=deadline_s,
        traceparent=traceparent,
        seats=seats,
        tools=tools,
    )
    return env_pb2.GatewayMessage(reset=message)


def step(session: int, seq: int, action: str, deadline_s: float = 0.0) -> env_pb2.GatewayMessage:
    """Takes one action, a text or an Action. Raises EnvProtocolError for one that cannot be sent."""
    message = env_pb2.Step(session=session, seq=seq, action=action_message(action), deadline_s=deadline_s)
    return env_pb2.GatewayMessage(step=message)


def close(session: int) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(close=env_pb2.Close(session=session))


def cancel(session: int, seq: int, reason: str) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(cancel=env_pb2.Cancel(session=session, seq=seq, reason=reason))


def ping(nonce: int) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(ping=env_pb2.Ping(nonce=nonce))


def drain(grace_s: float, reason: str) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(drain=env_pb2.Drain(grace_s=grace_s, reason=reason))
