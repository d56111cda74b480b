"""Between a stage's parallelism as values and the contracts' messages: status, events, commands, answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import grpc

from earl.errors import (
    DeadlineExceeded,
    EarlError,
    IllegalParallelism,
    LedgerError,
    ReshapeRefused,
    RpcError,
    ServiceUnavailable,
)
from earl.parallelism import Parallelism
from earl.rpc.access import Access
from earl.rpc.client import Client
from earl.rpc.errors import sent_by_service
from earl.v1 import common_pb2, events_pb2, rollout_pb2, scheduler_pb2, trainer_pb2
from earl.v1.rollout_pb2_grpc import RolloutServiceStub
from earl.v1.trainer_pb2_grpc import TrainerServiceStub
from services.scheduler.monitor.workers import STAGES
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.selector import stages
from services.scheduler.state.switch_records import Answer, Command, Ended, Switch

NUMBERS = {name: number for number, name in STAGES.items()}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one switch: seconds of each of its stages, and the largest difference of log-probs."""

    prepare_s: float
    quiesce_s: float
    switch_s: float
    verify_s: float
    logprob_tolerance: float


class Refused(EarlError):
    """A worker cannot be cut so, now or ever."""


class Silent(EarlError):
    """Nothing was answered: the same command may be told again."""


# --- the worker's side ----------------------------------------------------------------------


async def tell(command: Command, bounds: Bounds, access: Access, deadline_s: float) -> Answer:
    """Tells a worker and waits for what it makes of it.

    Raises Refused, Silent, and what else the worker raised.
    """
    rollout = command.stage == "rollout"
    request = (
        rollout_pb2.ReparallelizeRolloutRequest if rollout else trainer_pb2.ReparallelizeTrainerRequest
    )(
        epoch=command.epoch,
        parallelism=encode_parallelism(command.parallelism),
        prepare_s=bounds.prepare_s,
        quiesce_s=bounds.quiesce_s,
        switch_s=bounds.switch_s,
        verify_s=bounds.verify_s,
        logprob_tolerance=bounds.logprob_tolerance,
        reason=command.reason,
    )
    if not rollout:
        request.stage = NUMBERS[command.stage]  # type: ignore[attr-defined]
    stub = RolloutServiceStub if rollout else TrainerServiceStub
    client = Client(command.address, stub, token=access.token, tls=access.tls)
    try:
        method = "ReparallelizeRollout" if rollout else "ReparallelizeTrainer"
        answer = await client.call(method, request, deadline_s=deadline_s)
    except (ReshapeRefused, IllegalParallelism) as error:
        raise Refused(error.message, error.remedy) from error
    except (ServiceUnavailable, DeadlineExceeded) as error:
        cause = error.__cause__
        if isinstance(cause, grpc.aio.AioRpcError) and sent_by_service(cause) is not None:
            raise
        raise Silent(error.message, error.remedy) from error
    except RpcError as error:
        cause = error.__cause__
        if isinstance(cause, grpc.aio.AioRpcError) and cause.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise Refused(
                "it does not know how to change its parallelism while it runs",
                "run it in the version of EARL that the scheduler is of",
            ) from error
        raise
    finally:
        await client.close()
    cut = decode_parallelism(answer.parallelism) if answer.HasField("parallelism") else None
    return Answer(
        parallelism=cut,
        rolled_back=answer.rolled_back,
        message=" ".join(answer.message.split()),
        stall_s=answer.stall_s,
        sequences_continued=answer.sequences_continued if rollout else 0,
        moved_bytes=answer.kv_moved_bytes if rollout else answer.moved_bytes,
        max_logprob_difference=answer.max_logprob_difference,
    )


# --- the operator's side --------------------------------------------------------------------


def decode_stage(number: common_pb2.Stage) -> str:
    """Raises LedgerError for a stage that there is not."""
    if number not in STAGES:
        raise LedgerError(f"stage {number} is none", f"name one of {', '.join(NUMBERS)}")
    return STAGES[number]


def decode_asked(request: scheduler_pb2.SetParallelismRequest) -> tuple[int, Parallelism] | None:
    """(dp, 0 if it was left open; the replica as a parallelism of one); None if nothing is to be changed."""
    if not request.HasField("parallelism"):
        return None
    cut = request.parallelism
    return cut.dp, Parallelism(1, cut.tp or 1, cut.cp or 1, cut.pp or 1)


def encode_stages(
    switching: Switching, verdicts: Mapping[str, stages.Verdict]
) -> list[scheduler_pb2.StageStatus]:
    """What each stage runs with, what the selector said of it last, and its switches."""
    found = []
    for number, name in sorted(STAGES.items()):
        if not switching.devices(name):
            continue
        status = scheduler_pb2.StageStatus(stage=number)  # type: ignore[arg-type]
        running, course, verdict = switching.running(name), switching.course(name), verdicts.get(name)
        if running is not None:
            status.running.CopyFrom(encode_parallelism(running))
        if verdict is not None:
            status.chosen.CopyFrom(encode_parallelism(verdict.chosen))
            status.step, status.sentence = verdict.decision.step, verdict.sentence
        status.pinned, status.epoch = course.pinned, course.epoch
        if course.switch is not None:
            status.switching.CopyFrom(encode_switch(course.switch))
        if course.last is not None:
            status.last.CopyFrom(encode_switch(course.last))
        found.append(status)
    return found


def encode_switch(switch: Switch) -> scheduler_pb2.Switch:
    return scheduler_pb2.Switch(
        epoch=switch.epoch,
        before=encode_parallelism(switch.former),
        after=encode_parallelism(switch.asked),
        reason=switch.reason,
        rolled_back=switch.rolled_back,
        message=switch.message,
        stall_s=switch.stall_s,
        seconds=switch.seconds,
        sequences_continued=switch.sequences_continued,
        moved_bytes=switch.moved_bytes,
        max_logprob_difference=switch.max_logprob_difference,
    )


def encode_changed(fact: Ended) -> events_pb2.ParallelismChanged:
    switch = fact.switch
    return events_pb2.ParallelismChanged(
        stage=NUMBERS[fact.stage],  # type: ignore[arg-type]
        epoch=switch.epoch,
        before=encode_parallelism(switch.former),
        after=encode_parallelism(switch.asked),
        reason=switch.reason,
        stall_s=switch.stall_s,
        rolled_back=switch.rolled_back,
        message=switch.message,
        sequences_continued=switch.sequences_continued,
        moved_bytes=switch.moved_bytes,
    )


def encode_parallelism(cut: Parallelism) -> common_pb2.Parallelism:
    return common_pb2.Parallelism(dp=cut.dp, tp=cut.tp, cp=cut.cp, pp=cut.pp)


def decode_parallelism(cut: common_pb2.Parallelism) -> Parallelism:
    """A degree that was left out is 1."""
    return Parallelism(cut.dp or 1, cut.tp or 1, cut.cp or 1, cut.pp or 1)
