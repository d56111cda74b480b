"""earl.v1.TrainerService, served by rank 0: decode, ask, encode."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

from earl.errors import ConfigError, DeadlineExceeded
from earl.parallelism_codec import encode_parallelism
from earl.rpc.server import Server
from earl.scheduler_client import SchedulerClient
from earl.switch_codec import decode_command, encode_outcome
from earl.v1 import common_pb2, trainer_pb2
from earl.v1.trainer_pb2_grpc import TrainerServiceServicer, add_TrainerServiceServicer_to_server
from earl.waiting import deadline
from services.trainer.ranks.activity import Activity
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.switch_requests import SwitchRequests

_SERVICE = "earl.v1.TrainerService"
# Longest wait for the step boundary at which a checkpoint is saved.
SAVE_S = 300.0


@dataclass(frozen=True)
class StageServicer(TrainerServiceServicer):
    """The calls that trainer and reference stage both answer: status, and another parallelism."""

    activity: Activity
    scheduler: SchedulerClient
    switches: SwitchRequests

    async def GetTrainerStatus(self, request, context) -> trainer_pb2.GetTrainerStatusResponse:
        return trainer_pb2.GetTrainerStatusResponse(
            worker=self.scheduler.worker,
            parallelism=encode_parallelism(self.switches.parallelism),
            epoch=self.switches.epoch,
            version=self.activity.version,
            batch_id=self.activity.batch_id,
            doing=self.activity.doing,
            resident_bytes=_resident_bytes(),
        )

    async def ReparallelizeTrainer(self, request, context) -> trainer_pb2.ReparallelizeTrainerResponse:
        if request.stage not in (common_pb2.STAGE_UNSPECIFIED, self.scheduler.worker.stage):
            raise ConfigError(
                f"{self.scheduler.worker.name} is asked to change stage {request.stage}, it is of stage "
                f"{self.scheduler.worker.stage}",
                "send it to a worker of that stage",
            )
        outcome = await self.switches.carried_out(decode_command(request))
        return encode_outcome(outcome, trainer_pb2.ReparallelizeTrainerResponse)


@dataclass(frozen=True)
class TrainerServicer(StageServicer):
    """Serves the trainer's calls: switches, and requests for a checkpoint."""

    requests: StageRequests

    async def SaveCheckpoint(self, request, context) -> trainer_pb2.SaveCheckpointResponse:
        text = f"no step boundary came within {SAVE_S:g} s"
        async with deadline(SAVE_S, DeadlineExceeded(text, "ask again; a step may be that long")):
            path, version = await asyncio.wrap_future(self.requests.save())
        return trainer_pb2.SaveCheckpointResponse(path=path, version=version)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def add_to(server: Server, servicer: StageServicer) -> None:
    """Lets a server that has not started answer the trainer's calls."""
    server.add(add_TrainerServiceServicer_to_server, servicer, _SERVICE)
