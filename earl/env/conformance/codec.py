"""Messages of the environment stream as the examiner writes and reads them.

Frames are read from raw bytes here, not by gRPC: what cannot be decoded is a finding, not a lost stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from earl.env.conformance.acts import Act
from earl.errors import EnvProtocolError
from earl.v1 import env_pb2

PROTOCOL = 1


def messages_of(raw: bytes) -> Sequence[Any]:
    """The HostMessages of an AttachRequest. Raises EnvProtocolError."""
    try:
        return env_pb2.AttachRequest.FromString(raw).messages
    except DecodeError as error:
        raise EnvProtocolError(
            f"{len(raw)} bytes are no AttachRequest: {error}", "is every text in it valid UTF-8?"
        ) from error


def frame(messages: Sequence[Any]) -> bytes:
    """An AttachResponse of GatewayMessages."""
    return env_pb2.AttachResponse(messages=messages).SerializeToString()


def welcome(lease_s: float, max_text_bytes: int, sessions: Sequence[int]) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(
        welcome=env_pb2.Welcome(
            protocol=PROTOCOL, lease_s=lease_s, max_text_bytes=max_text_bytes, sessions=sessions
        )
    )


def reset(
    session: int, environment: str, task: Mapping[str, Any], seed: int, deadline_s: float
) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(
        reset=env_pb2.Reset(
            session=session,
            environment=environment,
            task_json=json.dumps(dict(task)),
            seed=seed,
            deadline_s=deadline_s,
        )
    )


def step(session: int, seq: int, act: Act, deadline_s: float) -> env_pb2.GatewayMessage:
    calls = [
        env_pb2.ToolCall(id=f"call-{number}", name=call.name, arguments_json=call.arguments_json)
        for number, call in enumerate(act.calls)
    ]
    action = env_pb2.Action(text=act.text, tool_calls=calls)
    return env_pb2.GatewayMessage(
        step=env_pb2.Step(session=session, seq=seq, action=action, deadline_s=deadline_s)
    )


def close(session: int) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(close=env_pb2.Close(session=session))


def cancel(session: int, seq: int) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(
        cancel=env_pb2.Cancel(session=session, seq=seq, reason="the examiner cancels it")
    )


def ping(nonce: int) -> env_pb2.GatewayMessage:
    return env_pb2.GatewayMessage(ping=env_pb2.Ping(nonce=nonce))
