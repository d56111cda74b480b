"""Checks a Hello and an Open before the gateway acts on them."""

from __future__ import annotations

import json
import math

from earl.env.base import MAX_SEATS
from earl.env.conformance.offered_tools import fault_in_tools
from earl.errors import EnvProtocolError
from earl.v1 import env_pb2
from services.env_gateway import codec
from services.env_gateway.state.sessions import limits_of

MAX_ENVIRONMENTS = 1_000
MAX_CAPACITY = 65_536
MAX_NAME = 256


def check_hello(hello: env_pb2.Hello) -> None:
    """Raises EnvProtocolError naming what is wrong."""
    if hello.protocol != codec.PROTOCOL:
        text = f"host {hello.host[:MAX_NAME]!r} speaks protocol {hello.protocol}"
        raise EnvProtocolError(text, f"use version {codec.PROTOCOL}")
    if not hello.host or len(hello.host) > MAX_NAME or hello.instance == 0:
        raise EnvProtocolError(f"Hello of host {hello.host[:MAX_NAME]!r} lacks a name or an instance")
    if not hello.host.isprintable():
        raise EnvProtocolError(f"the name of host {hello.host!r} is not printable", "use letters and digits")
    if len(hello.environments) > MAX_ENVIRONMENTS:
        count = len(hello.environments)
        raise EnvProtocolError(f"host {hello.host!r} names {count} environments, at most {MAX_ENVIRONMENTS}")
    if hello.capacity > MAX_CAPACITY:
        raise EnvProtocolError(
            f"host {hello.host!r} offers {hello.capacity} sessions, at most {MAX_CAPACITY}"
        )
    for info in hello.environments:
        if wrong := _fault_in(info):
            text = f"host {hello.host!r} serves {info.name[:MAX_NAME]!r}: {wrong}"
            raise EnvProtocolError(text, "correct this environment in the Hello; `earl env test` checks it")


def _fault_in(info: env_pb2.EnvironmentInfo) -> str:
    if not info.name or len(info.name) > MAX_NAME or not info.name.isprintable():
        return f"a name has 1 to {MAX_NAME} printable characters"
    low, high = info.min_reward, info.max_reward
    bounded = info.HasField("min_reward") and info.HasField("max_reward")
    if info.HasField("min_reward") != info.HasField("max_reward"):
        return "one bound of its reward only; declare both or none"
    if bounded and not -math.inf < low <= high < math.inf:
        return f"rewards in [{low}, {high}]"
    if info.seats > MAX_SEATS:
        return f"{info.seats} seats, at most {MAX_SEATS}"
    wrong = fault_in_tools(info.tools_json)
    return f"its tools_json {wrong}" if wrong else ""


def opening_limits(opening: env_pb2.Open, max_bytes: int) -> dict[str, float]:
    """The limits that an Open asks for, in seconds. Raises ValueError naming what is wrong with it."""
    if opening.ByteSize() > max_bytes:
        raise ValueError(f"Open of {opening.ByteSize()} bytes is larger than {max_bytes}")
    if not isinstance(json.loads(opening.task_json or "{}"), dict):
        raise ValueError("task_json is not a JSON object")
    if opening.seats > MAX_SEATS:
        raise ValueError(f"seats {opening.seats}: play 1 to {MAX_SEATS}")
    return limits_of(opening)
