"""Sends commands to workers: switches, whose refusals and lost calls are told from answers, and turns."""

from __future__ import annotations

import grpc

from earl.errors import (
    DeadlineExceeded,
    EarlError,
    IllegalParallelism,
    ReshapeRefused,
    RpcError,
    ServiceUnavailable,
)
from earl.parallelism import ROLLOUT
from earl.reparallelize import SwitchOutcome
from earl.rpc.access import Access
from earl.rpc.client import Client
from earl.rpc.errors import sent_by_service
from earl.switch_codec import decode_outcome, encode_command
from earl.v1 import rollout_pb2, trainer_pb2
from earl.v1.rollout_pb2_grpc import RolloutServiceStub
from earl.v1.trainer_pb2_grpc import TrainerServiceStub
from services.scheduler.codec_numbers import STAGE_NUMBERS
from services.scheduler.parallelism.device_turns import TurnCommand
from services.scheduler.state.switch_records import WorkerCommand


class SwitchRefused(EarlError):
    """The worker cannot have this parallelism, now or ever."""


class NoAnswer(EarlError):
    """The worker did not answer; the same command may be sent again."""


async def command_turn(command: TurnCommand, access: Access, deadline_s: float) -> None:
    """Has a rollout worker put its engines to sleep or wake them; returns when that is done.

    Raises ServiceUnavailable, DeadlineExceeded, and what the worker answered with.
    """
    client = Client(command.address, RolloutServiceStub, token=access.token, tls=access.tls)
    try:
        request = rollout_pb2.AlternateRolloutRequest(turn=command.turn, asleep=command.asleep)
        await client.call("AlternateRollout", request, deadline_s=deadline_s)
    finally:
        await client.close()


async def send(command: WorkerCommand, access: Access) -> SwitchOutcome:
    """Sends a command and waits for its outcome, at most for as long as its deadlines allow.

    Raises SwitchRefused, NoAnswer, and any other error that the worker answered with.
    """
    rollout = command.stage == ROLLOUT
    stub = RolloutServiceStub if rollout else TrainerServiceStub
    client = Client(command.address, stub, token=access.token, tls=access.tls)
    if rollout:
        method = "ReparallelizeRollout"
        request = encode_command(command.switch, rollout_pb2.ReparallelizeRolloutRequest)
    else:
        method = "ReparallelizeTrainer"
        request = encode_command(command.switch, trainer_pb2.ReparallelizeTrainerRequest)
        request.stage = STAGE_NUMBERS[command.stage]
    try:
        response = await client.call(method, request, deadline_s=command.switch.deadlines.total_s)
    except (ReshapeRefused, IllegalParallelism) as error:
        raise SwitchRefused(error.message, error.remedy) from error
    except (ServiceUnavailable, DeadlineExceeded) as error:
        cause = error.__cause__
        if isinstance(cause, grpc.aio.AioRpcError) and sent_by_service(cause) is not None:
            raise
        raise NoAnswer(error.message, error.remedy) from error
    except RpcError as error:
        cause = error.__cause__
        if isinstance(cause, grpc.aio.AioRpcError) and cause.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise SwitchRefused(
                "it does not know how to change its parallelism while it runs",
                "run it in the version of EARL that the scheduler is of",
            ) from error
        raise
    finally:
        await client.close()
    return decode_outcome(response)
