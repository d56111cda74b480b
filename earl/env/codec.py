"""Between the SDK's values and the environment stream's messages."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

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


def answer(session: int, seq: int, outcome: Observation | str | StepResult | Failure) -> env_pb2.HostMessage:
    """The message for what `reset` (an observation) or `step` (a StepResult) returned.

    Raises EnvProtocolError for what may not be sent: a wrong type, a reward or metric that is not
    finite, text that is not UTF-8.
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
        return env_pb2.HostMessage(
            result=env_pb2.Result(session=session, observation=_observation(outcome, "reset"))
        )
    if not isinstance(outcome, StepResult):
        raise EnvProtocolError(f"step {seq} returned {type(outcome).__name__}", "return a StepResult")
    reward = outcome.reward
    if not isinstance(reward, (int, float)) or not math.isfinite(reward):
        raise EnvProtocolError(f"reward {reward!r} of step {seq} is not a finite number")
    result = env_pb2.Result(
        session=session, seq=seq, observation=_observation(outcome.observation, "step"), reward=reward
    )
    if outcome.done or outcome.truncated:
        result.done = True
        result.ending = (Ending.OK if outcome.done else Ending.TRUNCATED).value  # type: ignore[assignment]
        for key, value in outcome.metrics.items():
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise EnvProtocolError(f"metric {key} = {value!r} is not a finite number")
            result.metrics[key] = value
    return env_pb2.HostMessage(result=result)


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
    )


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
    return StepResult(shown, result.reward, done, truncated, dict(result.metrics))


def _observation(value: object, source: str) -> env_pb2.Observation:
    try:
        if isinstance(value, str):
            return env_pb2.Observation(text=value)
        if isinstance(value, Observation):
            message = env_pb2.Observation(text=value.text, legal_actions=value.legal_actions)
            if value.role != ROLES[0]:
                message.role = checked_role(value.role)
            for result in value.tool_results:
                message.tool_results.add(id=result.id, text=result.text, is_error=result.is_error)
            return message
    except (AttributeError, TypeError, ValueError) as error:
        raise EnvProtocolError(f"observation of {source} cannot be sent: {error}") from error
    raise EnvProtocolError(f"{source} returned {type(value).__name__}", "return an Observation or its text")
