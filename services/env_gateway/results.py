"""Checks a host's Result before anybody sees it. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from earl.env.base import ROLES

# Endings by their number in earl.v1.Ending.
UNSPECIFIED, OK, TRUNCATED, ENV_ERROR, INFRA_ERROR, TIMEOUT = range(6)
# Beyond it a reward is its environment's error: sums and squares of such must stay finite in float32.
MAX_REWARD = 1e12
MAX_METRICS = 256
_RETURN_TOLERANCE = 1e-6


def rewards_of(result: Any, seats: int) -> Sequence[float]:
    """The reward of each seat that the client plays; of a reset and of a failure, which have none, zeros."""
    if seats == 1:
        return (result.reward,)
    return result.seat_rewards or (0.0,) * seats


def fault_in(
    result: Any, max_bytes: int, bounds: tuple[float, float] | None, returns: Sequence[float]
) -> str:
    """Describes the fault of a host's Result; empty if it may be passed on.

    bounds: declared for the sum of an episode's rewards, of each seat; returns: that sum before this result,
    one for each seat that the client plays.
    """
    seats = len(returns)
    for reward in (result.reward, *result.seat_rewards):
        if not abs(reward) <= MAX_REWARD:
            finite = math.isfinite(reward)
            return f"reward {reward} is " + (f"larger than {MAX_REWARD:g}" if finite else "not finite")
    size_bytes = result.ByteSize()
    if size_bytes > max_bytes:
        return f"result of {size_bytes} bytes is larger than {max_bytes}"
    observation = result.observation
    if observation.role not in ("", *ROLES):
        return f"observation has role {observation.role!r}, not one of {', '.join(ROLES)}"
    for message in (result, observation, *result.seat_metrics):
        if mistyped := _mistyped(message):
            return mistyped
    failed = result.done and result.ending not in (OK, TRUNCATED)
    if wrong := _fault_of_seats(result, seats, failed):
        return wrong
    if not result.done:
        return f"ending {result.ending} on a result that is not done" if result.ending else ""
    return _fault_at_end(result, bounds, returns)


def _fault_of_seats(result: Any, seats: int, failed: bool) -> str:
    """Names what does not fit the number of seats played; a reset and a failure have no rewards."""
    played = "one seat is played" if seats == 1 else f"{seats} seats are played"
    if result.observation.seat >= seats:
        return f"observation is for seat {result.observation.seat}, where {played}: seats count from 0"
    expected = 0 if seats == 1 or failed or result.seq == 0 else seats
    if len(result.seat_rewards) != expected:
        remedy = f"send {expected}" if expected else "send none"
        return f"{len(result.seat_rewards)} seat_rewards, where {played}: {remedy}"
    if len(result.seat_metrics) not in ((0,) if seats == 1 else (0, seats)):
        return (
            f"{len(result.seat_metrics)} seat_metrics, where {played}: send one for each of several, or none"
        )
    return ""


def _fault_at_end(result: Any, bounds: tuple[float, float] | None, returns: Sequence[float]) -> str:
    if result.ending not in (OK, TRUNCATED, ENV_ERROR, INFRA_ERROR, TIMEOUT):
        return f"unknown ending {result.ending}"
    for metrics in (result.metrics, *(seat.metrics for seat in result.seat_metrics)):
        if len(metrics) > MAX_METRICS:
            return f"{len(metrics)} metrics are more than {MAX_METRICS}"
        for key, value in metrics.items():
            if not math.isfinite(value):
                return f"metric {key} = {value} is not finite"
    if bounds is None or result.ending not in (OK, TRUNCATED):
        return ""
    for seat, (earned, reward) in enumerate(zip(returns, rewards_of(result, len(returns)), strict=True)):
        total = earned + reward
        margin = _RETURN_TOLERANCE * max(1.0, abs(total))
        if not bounds[0] - margin <= total <= bounds[1] + margin:
            whose = f" of seat {seat}" if len(returns) > 1 else ""
            return f"return {total:g}{whose} is outside of the declared [{bounds[0]:g}, {bounds[1]:g}]"
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
