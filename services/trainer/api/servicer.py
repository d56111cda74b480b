"""earl.v1.TrainerService, served by rank 0: decode, ask, encode."""

from __future__ import annotations

import asyncio
import os

from earl.errors import ConfigError, DeadlineExceeded
from earl.parallelism_codec import decode_command, encode_outcome, encode_parallelism
from earl.rpc.server import Server
from earl.scheduler_client import SchedulerClient
from earl.v1 import common_pb2, trainer_pb2
from earl.v1.trainer_pb2_grpc import TrainerServiceServicer, add_TrainerServiceServicer_to_server
from services.trainer.ranks.activity import Activity
from services.trainer.ranks.requests import StageRequests
from services.trainer.ranks.switch_requests import SwitchRequests

SERVICE = "earl.v1.TrainerService"
# Longest wait for the step boundary at which a checkpoint is saved.
SAVE_S = 300.0


class StageServicer(TrainerServiceServicer):
    """The calls that trainer and reference stage both answer: status, and another parallelism."""

    def __init__(self, activity: Activity, scheduler: SchedulerClient, switches: SwitchRequests) -> None:
        self._activity = activity
        self._scheduler = scheduler
        self._switches = switches

    async def GetTrainerStatus(self, request, context) -> trainer_pb2.GetTrainerStatusResponse:
        return trainer_pb2.GetTrainerStatusResponse(
            worker=self._scheduler.worker,
            parallelism=encode_parallelism(self._switches.parallelism),
            epoch=self._switches.epoch,
            version=self._activity.version,
            batch_id=self._activity.batch_id,
            doing=self._activity.doing,
            resident_bytes=_resident_bytes(),
        )

    async def ReparallelizeTrainer(self, request, context) -> trainer_pb2.ReparallelizeTrainerResponse:
        if request.stage not in (common_pb2.STAGE_UNSPECIFIED, self._scheduler.worker.stage):
            raise ConfigError(
                f"{self._scheduler.worker.name} is asked to change stage {request.stage}, it is of stage "
                f"{self._scheduler.worker.stage}",
                "send it to a worker of that stage",
            )
        outcome = await self._switches.carried_out(decode_command(request))
        return encode_outcome(outcome, trainer_pb2.ReparallelizeTrainerResponse)


class TrainerServicer(StageServicer):
    def __init__(
        self,
        activity: Activity,
        requests: StageRequests,
        scheduler: SchedulerClient,
        switches: SwitchRequests,
    ) -> None:
        super().__init__(activity, scheduler, switches)
        self._requests = requests

    async def SaveCheckpoint(self, request, context) -> trainer_pb2.SaveCheckpointResponse:
        try:
            async with asyncio.timeout(SAVE_S):
                path, version = await asyncio.wrap_future(self._requests.save())
        except TimeoutError:
            raise DeadlineExceeded(
                f"no step boundary came within {SAVE_S:g} s", "ask again; a step may be that long"
            ) from None
        return trainer_pb2.SaveCheckpointResponse(path=path, version=version)


def serve(server: Server, servicer: StageServicer) -> None:
    """Adds the service to a server that has not started yet."""
    server.add(add_TrainerServiceServicer_to_server, servicer, SERVICE)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
