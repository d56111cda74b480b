"""earl.v1.RolloutService: decodes requests, asks the worker or its pool, encodes the answers."""

from __future__ import annotations

from earl.message_fields import to_message
from earl.parallelism_codec import encode_parallelism
from earl.switch_codec import decode_command, encode_outcome
from earl.v1 import rollout_pb2
from earl.v1.rollout_pb2_grpc import RolloutServiceServicer
from services.rollout.worker.worker import RolloutWorker, WorkerResources

# Upper bound of the wait of one DrainRollout call.
MAX_DRAIN_S = 600.0


class RolloutServicer(RolloutServiceServicer):
    def __init__(self, worker: RolloutWorker, resources: WorkerResources) -> None:
        self._worker = worker
        self._gauges = resources.gauges
        self._scheduler = resources.scheduler
        self._pool = resources.pool

    async def GetRolloutStatus(self, request, context) -> rollout_pb2.GetRolloutStatusResponse:
        engines = [
            to_message(rollout_pb2.EngineStatus, stats, name=f"{self._scheduler.worker.name}/engine-{number}")
            for number, stats in enumerate(self._gauges.engines)
        ]
        return rollout_pb2.GetRolloutStatusResponse(
            worker=self._scheduler.worker,
            engines=engines,
            epoch=self._pool.epoch,
            episodes=self._worker.episodes,
            parallelism=encode_parallelism(self._pool.parallelism),
        )

    async def ReparallelizeRollout(self, request, context) -> rollout_pb2.ReparallelizeRolloutResponse:
        outcome = await self._pool.reparallelize(decode_command(request))
        self._worker.follow_devices()
        return encode_outcome(outcome, rollout_pb2.ReparallelizeRolloutResponse)

    async def AlternateRollout(self, request, context) -> rollout_pb2.AlternateRolloutResponse:
        seconds = await self._pool.set_asleep(request.asleep, request.turn)
        return rollout_pb2.AlternateRolloutResponse(seconds=seconds)

    async def DrainRollout(self, request, context) -> rollout_pb2.DrainRolloutResponse:
        wait_s = min(max(request.wait_s, 0.0), MAX_DRAIN_S)
        return rollout_pb2.DrainRolloutResponse(remaining=await self._worker.drain(wait_s))
