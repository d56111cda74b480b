"""Between the SDK's values and the environment stream's messages."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from earl.env.base import (
    ROLES,
    Action,
    Ending,
    Environment,
    Observation,
    StepResult,
    ToolCall,
    ToolResult,
    schema_hash,
)
from earl.env.tool_calls import from_json, to_json
from earl.errors import EarlError, EnvironmentFailure, EnvProtocolError
from earl.rpc.errors import bounded, catalogue
from earl.v1 import env_pb2

PROTOCOL = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """An episode that ended without a result that may train."""

    ending: Ending
    reason: str
    text: str


def failure_message(reason: str, text: str) -> str:
    """The one line of a failed Result: the error's class name, a colon, what happened."""
    return bounded(f"{reason}: {text}")


def error_of(message: str) -> EarlError:
    """Returns the error that a failed Result's `message` names; EnvironmentFailure if it names none."""
    reason, separator, text = message.partition(": ")
    cls = catalogue().get(reason) if separator else None
    return cls(text) if cls else EnvironmentFailure(message)


def info(name: str, environment: type[Environment] | Environment) -> env_pb2.EnvironmentInfo:
    """Builds a host's declaration of an environment that it serves."""
    message = env_pb2.EnvironmentInfo(
        name=name, description=environment.description, schema_hash=schema_hash(environment)
    )
    if environment.reward_range is not None:
        message.min_reward, message.max_reward = environment.reward_range
    if environment.tools:
        message.tools_json = json.dumps([tool.schema() for tool in environment.tools])
    if environment.selects_tools:
        message.selects_tools = True
    if environment.seats != 1:
        message.seats = environment.seats
    return message


def action(message: env_pb2.Action) -> Action:
    """Decodes an agent's action. Arguments that are no JSON stay text: a tool refuses them."""
    return Action(message.text, [_tool_call(call) for call in message.tool_calls])


def _tool_call(message: env_pb2.ToolCall) -> ToolCall:
    try:
        arguments = from_json(message.arguments_json or "{}")
    except ValueError:
        arguments = message.arguments_json
    return ToolCall(message.name, arguments, message.id)


def action_message(action: str) -> env_pb2.Action:
    """The message of a text or an Action. Raises EnvProtocolError for what cannot be sent."""
    try:
        message = env_pb2.Action(text=action)
        for call in getattr(action, "tool_calls", ()):
            given = call.arguments
            text = given if isinstance(given, str) else to_json(given)
            message.tool_calls.add(id=call.id, name=call.name, arguments_json=text)
    except (TypeError, ValueError) as error:
        raise EnvProtocolError(f"the action cannot be sent: {error}", "send text and JSON") from error
    return message


def answer(
    session: int, seq: int, outcome: Observation | str | StepResult | Failure, seats: int = 1
) -> env_pb2.HostMessage:
    """The message for what `reset` (an observation) or `step` (a StepResult) returned.

    seats: how many the client plays. Raises EnvProtocolError for what may not be sent: a wrong type, a
    reward or metric that is not finite, rewards for another number of seats, a seat that there is not, text
    that is not UTF-8.
    """
    if isinstance(outcome, Failure):
        result = env_pb2.Result(
            session=session,
            seq=seq,
            done=True,
            ending=outcome.ending.value,  # type: ignore[arg-type]
            message=failure_message(outcome.reason, outcome.text),
        )
        return env_pb2.HostMessage(result=result)
    if seq == 0:
        shown = _observation(outcome, "reset", seats)
        return env_pb2.HostMessage(result=env_pb2.Result(session=session, observation=shown))
    if not isinstance(outcome, StepResult):
        raise EnvProtocolError(f"step {seq} returned {type(outcome).__name__}", "return a StepResult")
    result = env_pb2.Result(
        session=session, seq=seq, observation=_observation(outcome.observation, "step", seats)
    )
    _fill_rewards(result, outcome, seats)
    if outcome.done or outcome.truncated:
        result.done = True
        result.ending = (Ending.OK if outcome.done else Ending.TRUNCATED).value  # type: ignore[assignment]
        _fill_metrics(result, outcome, seats)
    return env_pb2.HostMessage(result=result)


def _fill_rewards(result: env_pb2.Result, outcome: StepResult, seats: int) -> None:
    step = f"of step {result.seq}"
    if not _is_finite(outcome.reward):
        raise EnvProtocolError(f"reward {outcome.reward!r} {step} is not a finite number")
    if seats == 1:
        if len(outcome.rewards):
            text = f"rewards {outcome.rewards!r} {step}, where one seat is played"
            raise EnvProtocolError(text, "give `reward` where seats_played is 1")
        result.reward = outcome.reward
        return
    if outcome.reward or len(outcome.rewards) != seats:
        given = f"reward {outcome.reward!r} and rewards {outcome.rewards!r} {step}"
        raise EnvProtocolError(
            f"{given}, where {seats} seats are played", f"give `rewards`, {seats} numbers, and no `reward`"
        )
    for seat, reward in enumerate(outcome.rewards):
        if not _is_finite(reward):
            raise EnvProtocolError(f"reward {reward!r} of seat {seat} {step} is not a finite number")
    result.seat_rewards.extend(outcome.rewards)


def _fill_metrics(result: env_pb2.Result, outcome: StepResult, seats: int) -> None:
    _fill_numbers(result.metrics, outcome.metrics, "metric")
    count = len(outcome.seat_metrics)
    if count and (seats == 1 or count != seats):
        text = f"seat_metrics of {count} seats, where {seats} {'is' if seats == 1 else 'are'} played"
        raise EnvProtocolError(text, "give `metrics` for one seat, seat_metrics for each of several")
    for seat, figures in enumerate(outcome.seat_metrics):
        _fill_numbers(result.seat_metrics.add().metrics, figures, f"seat {seat}: metric")


def _fill_numbers(target: Any, figures: Mapping[str, float], what: str) -> None:
    for key, value in figures.items():
        if not _is_finite(value):
            raise EnvProtocolError(f"{what} {key} = {value!r} is not a finite number")
        target[key] = value


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def credit(capacity: int) -> env_pb2.HostMessage:
    """The host takes this many sessions in all from now on."""
    return env_pb2.HostMessage(credit=env_pb2.Credit(capacity=capacity))


def progress(session: int, seq: int, message: str) -> env_pb2.HostMessage:
    """A slow reset or step is alive."""
    return env_pb2.HostMessage(progress=env_pb2.Progress(session=session, seq=seq, message=message))


def checked_role(role: str) -> str:
    """Returns the role to send: "" means "user". Raises EnvProtocolError."""
    if role and role not in ROLES:
        raise EnvProtocolError(f"observation has role {role!r}", f"use one of {', '.join(ROLES)}")
    return role


def observation(message: env_pb2.Observation) -> Observation:
    """Decodes the observation of a Result. Raises EnvProtocolError for a role that there is not."""
    return Observation(
        message.text,
        tuple(message.legal_actions),
        checked_role(message.role) or ROLES[0],
        tuple(ToolResult(result.text, result.id, result.is_error) for result in message.tool_results),
        message.seat,
    )


def seat_metrics(result: env_pb2.Result) -> tuple[dict[str, float], ...]:
    """Decodes the metrics of each seat."""
    return tuple(dict(seat.metrics) for seat in result.seat_metrics)


# --- between a host and a process of its own (isolation.py) ---------------------------------------


def host_message(data: bytes) -> env_pb2.HostMessage:
    """Decodes a message to a host. Raises google.protobuf.message.DecodeError."""
    return env_pb2.HostMessage.FromString(data)


def outcome(result: env_pb2.Result) -> Observation | StepResult:
    """Decodes a Result that `answer` built: an observation for a reset, else a StepResult.

    Raises the error that a failed one names.
    """
    if result.message or result.ending not in (Ending.NONE, Ending.OK, Ending.TRUNCATED):
        raise error_of(result.message)
    shown = observation(result.observation)
    if result.seq == 0:
        return shown
    done, truncated = result.ending == Ending.OK, result.ending == Ending.TRUNCATED
    return StepResult(
        shown,
        result.reward,
        done,
        truncated,
        dict(result.metrics),
        tuple(result.seat_rewards),
        seat_metrics(result),
    )


def _observation(value: object, source: str, seats: int) -> env_pb2.Observation:
    try:
        if isinstance(value, str):
            return env_pb2.Observation(text=value)
        if isinstance(value, Observation):
            message = env_pb2.Observation(text=value.text, legal_actions=value.legal_actions)
            if value.role != ROLES[0]:
                message.role = checked_role(value.role)
            if value.seat:
                message.seat = _checked_seat(value.seat, source, seats)
            for result in value.tool_results:
                message.tool_results.add(id=result.id, text=result.text, is_error=result.is_error)
            return message
    except (AttributeError, TypeError, ValueError) as error:
        raise EnvProtocolError(f"observation of {source} cannot be sent: {error}") from error
    raise EnvProtocolError(f"{source} returned {type(value).__name__}", "return an Observation or its text")


def _checked_seat(seat: int, source: str, seats: int) -> int:
    if seat not in range(seats):
        played = "one seat is" if seats == 1 else f"{seats} seats are"
        raise EnvProtocolError(
            f"observation of {source} is for seat {seat!r}, where {played} played",
            f"seats are 0 to {seats - 1}" if seats > 1 else "leave `seat` at 0 where seats_played is 1",
        )
    return seat
