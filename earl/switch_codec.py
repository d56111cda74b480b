"""Commands and outcomes of switches of parallelism, between values and messages.

Deadlines go by name: each field of SwitchDeadlines has one of the same name in the message of that name.
Before that message, requests had some deadlines in fields of their own; they are filled for readers, and read
from writers, that know no others.
"""

from __future__ import annotations

import math
import time
from typing import TypeVar

from earl.config.scheduler import SwitchDeadlines
from earl.errors import ConfigError, RpcError
from earl.parallelism import Parallelism
from earl.parallelism_codec import decode_parallelism, encode_parallelism, figures_of, put_figures
from earl.reparallelize import LOGPROB_TOLERANCE, SwitchCommand, SwitchOutcome
from earl.switch_figures import StageSwitch
from earl.v1 import rollout_pb2, scheduler_pb2, trainer_pb2

CommandMessage = rollout_pb2.ReparallelizeRolloutRequest | trainer_pb2.ReparallelizeTrainerRequest
OutcomeMessage = rollout_pb2.ReparallelizeRolloutResponse | trainer_pb2.ReparallelizeTrainerResponse

CommandKind = TypeVar(
    "CommandKind", rollout_pb2.ReparallelizeRolloutRequest, trainer_pb2.ReparallelizeTrainerRequest
)
OutcomeKind = TypeVar(
    "OutcomeKind", rollout_pb2.ReparallelizeRolloutResponse, trainer_pb2.ReparallelizeTrainerResponse
)


# --- commands -------------------------------------------------------------------------------


def encode_command(command: SwitchCommand, kind: type[CommandKind]) -> CommandKind:
    """The request of that kind for a command; a trainer's stage is for the caller to set."""
    request = kind(
        epoch=command.epoch,
        parallelism=encode_parallelism(command.parallelism),
        logprob_tolerance=command.logprob_tolerance,
        reason=command.reason,
    )
    for name in SwitchDeadlines.model_fields:
        seconds = getattr(command.deadlines, name)
        setattr(request.deadlines, name, seconds)
        if name in request.DESCRIPTOR.fields_by_name:
            setattr(request, name, seconds)
    return request


def decode_command(request: CommandMessage) -> SwitchCommand:
    """The command of a request that has just arrived; a deadline or tolerance of 0 is the default.

    Raises ConfigError for a deadline or tolerance that cannot be.
    """
    given = {
        name: value
        for name in SwitchDeadlines.model_fields
        if (value := getattr(request.deadlines, name) or getattr(request, name, 0.0))
    }
    for name, seconds in given.items():
        if not 0 < seconds < math.inf:
            raise ConfigError(f"{name} = {seconds}", "give every stage of a switch more than 0 seconds")
    return SwitchCommand(
        request.epoch,
        decode_parallelism(request.parallelism),
        SwitchDeadlines(**given),
        request.logprob_tolerance or LOGPROB_TOLERANCE,
        request.reason,
        time.monotonic(),
    )


# --- outcomes -------------------------------------------------------------------------------


def encode_outcome(outcome: SwitchOutcome, kind: type[OutcomeKind]) -> OutcomeKind:
    """The response of that kind for an outcome."""
    response = kind(
        epoch=outcome.epoch,
        parallelism=encode_parallelism(outcome.parallelism),
        rolled_back=outcome.rolled_back,
        message=outcome.message,
    )
    put_figures(outcome, response)
    return response


def decode_outcome(response: OutcomeMessage) -> SwitchOutcome:
    """The outcome in a response. Raises RpcError if the worker does not report its present parallelism."""
    if not response.HasField("parallelism"):
        raise RpcError("the answer does not name a parallelism", "run workers of the scheduler's version")
    return SwitchOutcome(
        epoch=response.epoch,
        parallelism=decode_parallelism(response.parallelism),
        rolled_back=response.rolled_back,
        message=" ".join(response.message.split()),
        **figures_of(response),
    )


# --- switches that a worker made by itself --------------------------------------------------


def encode_ended(switch: StageSwitch[Parallelism]) -> scheduler_pb2.Switch:
    """The message of a switch of one worker."""
    message = scheduler_pb2.Switch(
        epoch=switch.epoch,
        before=encode_parallelism(switch.before),
        after=encode_parallelism(switch.after),
        reason=switch.reason,
        rolled_back=switch.rolled_back,
        message=switch.message,
    )
    put_figures(switch, message)
    return message


def decode_ended(message: scheduler_pb2.Switch) -> StageSwitch[Parallelism]:
    """The switch of one worker that a message reports."""
    return StageSwitch(
        epoch=message.epoch,
        before=decode_parallelism(message.before),
        after=decode_parallelism(message.after),
        reason=" ".join(message.reason.split()),
        rolled_back=message.rolled_back,
        message=" ".join(message.message.split()),
        **figures_of(message),
    )
