"""Checks a host's Result before anybody sees it. Pure."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from earl.env.base import ROLES

# Endings by their number in earl.v1.Ending.
UNSPECIFIED, OK, TRUNCATED, ENV_ERROR, INFRA_ERROR, TIMEOUT = range(6)
# Beyond it a reward is its environment's error: sums and squares of such must stay finite in float32.
MAX_REWARD = 1e12
MAX_METRICS = 256
_RETURN_TOLERANCE = 1e-6


def fault_in(result: Any, max_bytes: int, bounds: tuple[float, float] | None, return_: float) -> str:
    """Describes the fault of a host's Result; empty if it may be passed on.

    bounds: declared for the sum of an episode's rewards; return_: that sum before this result.
    """
    reward = result.reward
    if not abs(reward) <= MAX_REWARD:
        finite = math.isfinite(reward)
        return f"reward {reward} is " + (f"larger than {MAX_REWARD:g}" if finite else "not finite")
    size_bytes = result.ByteSize()
    if size_bytes > max_bytes:
        return f"result of {size_bytes} bytes is larger than {max_bytes}"
    observation = result.observation
    if observation.role not in ("", *ROLES):
        return f"observation has role {observation.role!r}, not one of {', '.join(ROLES)}"
    if mistyped := _mistyped(result) or _mistyped(observation):
        return mistyped
    if not result.done:
        return f"ending {result.ending} on a result that is not done" if result.ending else ""
    return _fault_at_end(result, bounds, return_ + reward)


def _fault_at_end(result: Any, bounds: tuple[float, float] | None, total: float) -> str:
    if result.ending not in (OK, TRUNCATED, ENV_ERROR, INFRA_ERROR, TIMEOUT):
        return f"unknown ending {result.ending}"
    if len(result.metrics) > MAX_METRICS:
        return f"{len(result.metrics)} metrics are more than {MAX_METRICS}"
    for key, value in result.metrics.items():
        if not math.isfinite(value):
            return f"metric {key} = {value} is not finite"
    if bounds is not None and result.ending in (OK, TRUNCATED):
        margin = _RETURN_TOLERANCE * max(1.0, abs(total))
        if not bounds[0] - margin <= total <= bounds[1] + margin:
            return f"return {total:g} is outside of the declared [{bounds[0]:g}, {bounds[1]:g}]"
    return ""


def _mistyped(message: Any) -> str:
    """A field that came with another type than the protocol's: protobuf would take it as absent, and an
    absent reward is 0. Fields of a newer protocol are nobody's fault."""
    unknown = UnknownFieldSet(message)
    if not len(unknown):
        return ""
    names = message.DESCRIPTOR.fields_by_number
    for field in unknown:
        if field.field_number in names:
            return f"{names[field.field_number].name} has wire type {field.wire_type}, which is not its own"
    return ""
