"""Commands and outcomes of switches as values: where generated messages end."""

from __future__ import annotations

import asyncio

from earl.errors import DeadlineExceeded
from earl.parallelism import Parallelism
from earl.parallelism_codec import encode_parallelism
from earl.v1 import trainer_pb2
from services.trainer.ranks.switch_requests import Command, Deadlines, Epochs, Outcome

# Beyond the deadlines of a switch's stages: what ranks need to agree on each.
SLACK_S = 5.0


def decode_command(request: trainer_pb2.ReparallelizeTrainerRequest) -> Command:
    """Raises IllegalParallelism, ConfigError."""
    wanted = request.parallelism
    return Command(
        request.epoch,
        # pp may be left out: there is only one stage.
        Parallelism(wanted.dp, wanted.tp, wanted.cp, wanted.pp or 1),
        Deadlines(request.prepare_s, request.quiesce_s, request.switch_s, request.verify_s),
        request.logprob_tolerance,
        request.reason,
    )


def encode_outcome(outcome: Outcome) -> trainer_pb2.ReparallelizeTrainerResponse:
    return trainer_pb2.ReparallelizeTrainerResponse(
        epoch=outcome.epoch,
        parallelism=encode_parallelism(outcome.parallelism),
        rolled_back=outcome.rolled_back,
        message=outcome.message,
        stall_s=outcome.stall_s,
        moved_bytes=outcome.moved_bytes,
        peak_extra_bytes=outcome.peak_extra_bytes,
        max_logprob_difference=outcome.max_logprob_difference,
        seconds=outcome.seconds,
    )


async def carried_out(epochs: Epochs, command: Command) -> Outcome:
    """Ask, and wait for what becomes of it; one that no boundary came for in time is withdrawn.

    Whoever stops waiting stops nothing. Raises StaleEpoch, IllegalParallelism, DeadlineExceeded.
    """
    outcome = asyncio.wrap_future(epochs.ask(command))
    deadlines = command.deadlines
    done, _ = await asyncio.wait([outcome], timeout=deadlines.prepare_s)
    if not done:
        epochs.withdraw(command.epoch, f"no step boundary came within {deadlines.prepare_s:g} s")
        done, _ = await asyncio.wait([outcome], timeout=deadlines.begun_s + SLACK_S)
    if not done:
        raise DeadlineExceeded(
            f"epoch {command.epoch} has begun, and not ended within {deadlines.begun_s + SLACK_S:g} s",
            "send the same command again to learn what becomes of it",
        )
    return outcome.result()
