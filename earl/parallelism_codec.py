"""Parallelism, and the commands and outcomes of its switches, between values and messages.

Figures and deadlines go by name: each field of SwitchFigures and SwitchDeadlines has one of the same name in
the message of that name. Before those messages, requests and responses had some of them in fields of their
own; they are filled for readers, and read from writers, that know no others.
"""

from __future__ import annotations

import math
import time
from typing import Any, TypeVar

from earl.config.scheduler import SwitchDeadlines
from earl.errors import ConfigError, RpcError
from earl.parallelism import Parallelism
from earl.reparallelize import LOGPROB_TOLERANCE, SwitchCommand, SwitchFigures, SwitchOutcome
from earl.v1 import common_pb2, events_pb2, rollout_pb2, scheduler_pb2, trainer_pb2

CommandMessage = rollout_pb2.ReparallelizeRolloutRequest | trainer_pb2.ReparallelizeTrainerRequest
OutcomeMessage = rollout_pb2.ReparallelizeRolloutResponse | trainer_pb2.ReparallelizeTrainerResponse
FiguresMessage = OutcomeMessage | scheduler_pb2.Switch | events_pb2.ParallelismChanged

CommandKind = TypeVar(
    "CommandKind", rollout_pb2.ReparallelizeRolloutRequest, trainer_pb2.ReparallelizeTrainerRequest
)
OutcomeKind = TypeVar(
    "OutcomeKind", rollout_pb2.ReparallelizeRolloutResponse, trainer_pb2.ReparallelizeTrainerResponse
)

# Fields of older messages that have a figure under another name.
_OLDER_NAMES = {"kv_moved_bytes": "moved_bytes"}


def encode_parallelism(parallelism: Parallelism) -> common_pb2.Parallelism:
    return common_pb2.Parallelism(**parallelism.as_dict())


def decode_parallelism(message: common_pb2.Parallelism) -> Parallelism:
    """The parallelism of a message; a degree that was left out is 1."""
    return Parallelism(message.dp or 1, message.tp or 1, message.cp or 1, message.pp or 1)


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


def put_figures(figures: SwitchFigures, message: FiguresMessage) -> None:
    """Fills the message's `figures`, and the older fields of it that repeat some of them."""
    values = figures.figures()
    message.figures.CopyFrom(common_pb2.SwitchFigures(**values))
    for name, older in _older_fields(message).items():
        setattr(message, older, values[name])


def figures_of(message: FiguresMessage) -> dict[str, Any]:
    """Figures by name; where a writer of before `figures` sent the message, those it has older fields for."""
    if message.HasField("figures"):
        return {name: getattr(message.figures, name) for name in SwitchFigures().figures()}
    return {name: getattr(message, older) for name, older in _older_fields(message).items()}


def _older_fields(message: FiguresMessage) -> dict[str, str]:
    """Figure -> the message's field that repeats it."""
    figures = SwitchFigures().figures()
    names = {_OLDER_NAMES.get(name, name): name for name in message.DESCRIPTOR.fields_by_name}
    return {figure: name for figure, name in names.items() if figure in figures}
