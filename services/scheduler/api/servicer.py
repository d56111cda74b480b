"""earl.v1.SchedulerService: decode, call, encode."""

from __future__ import annotations

import math
import random
import time

from earl.message_fields import fill, from_message
from earl.parallelism import REFERENCE
from earl.parallelism_codec import decode_parallelism
from earl.switch_codec import decode_ended
from earl.v1 import scheduler_pb2, scheduler_pb2_grpc
from earl.worker_report import BusySpan, TransferTotals
from services.scheduler.api import codec, codec_reference, codec_tickets, codec_transcripts
from services.scheduler.api.codec_status import encode_status
from services.scheduler.journal.events import encode_switch
from services.scheduler.monitor.workers import WorkerReport
from services.scheduler.scheduler import Scheduler
from services.scheduler.state.workers import WorkerId

SERVICE = "earl.v1.SchedulerService"
CREDIT = 4096
GAUGES = 256
TRAIN_FRACTION = "train_fraction"
# By what part of itself the time between two heartbeats differs.
SPREAD = 0.25
# Characters of a reason that are kept.
REASON = 200


class SchedulerServicer(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Every refusal is an EarlError; earl.rpc turns it into a status."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tickets = codec.TicketEncoder(scheduler.config, scheduler.task_sets, scheduler.recorded)

    async def Join(self, request, context):
        version, keys = await self._scheduler.join(codec.decode_worker(request))
        return scheduler_pb2.JoinResponse(
            lease_s=self._scheduler.membership_s, version=version, weight_keys=keys
        )

    async def Leave(self, request, context):
        reason = request.reason[:REASON]
        await self._scheduler.leave(_worker(request), reason)
        return scheduler_pb2.LeaveResponse()

    async def Heartbeat(self, request, context):
        gauges = _finite(request.gauges)
        # It is known while a batch is trained: among the gauges that are shown it would come and go.
        train_fraction = gauges.pop(TRAIN_FRACTION, None)
        report = WorkerReport(
            incarnation=request.worker.incarnation,
            received_s=time.monotonic(),
            running=request.running,
            version=request.version,
            gauges=gauges,
            train_fraction=train_fraction,
            transfers=[from_message(TransferTotals, total) for total in request.transfers],
            devices=codec.decode_devices(request.devices),
        )
        spans = [from_message(BusySpan, span) for span in request.spans]
        parallelism = decode_parallelism(request.parallelism) if request.HasField("parallelism") else None
        switches = [decode_ended(switch) for switch in request.switches]
        stop, refused_tokens = self._scheduler.heartbeat(
            _worker(request), report, spans, parallelism, request.epoch, switches
        )
        # A fleet that started together must not beat together for good.
        next_s = self._scheduler.heartbeat_s * random.uniform(1.0 - SPREAD, 1.0 + SPREAD)
        response = scheduler_pb2.HeartbeatResponse(
            stop=stop, next_s=next_s, refused_context_tokens=int(refused_tokens)
        )
        if not request.sequences or parallelism is None:
            return response
        if self._scheduler.may_move(_worker(request), parallelism):
            sequences = codec.decode_sequences(request.sequences)
            for move in self._scheduler.moves(parallelism, sequences):
                fill(response.moves.add(), move)
        return response

    async def LeaseTickets(self, request, context):
        tickets, stop = await self._scheduler.lease(
            _worker(request),
            min(request.credit, CREDIT, max(1, self._tickets.most)),
            _wait(request.wait_s),
            request.newest_fence if request.HasField("newest_fence") else None,
        )
        traceparent, engine = self._scheduler.traceparent, self._scheduler.planned_engine
        encoded = [self._tickets.encode(ticket, traceparent(ticket.id), engine(ticket)) for ticket in tickets]
        return scheduler_pb2.LeaseTicketsResponse(tickets=encoded, stop=stop)

    async def RenewLeases(self, request, context):
        attempts = [codec.decode_attempt(ref) for ref in request.attempts]
        lost = self._scheduler.renew(_worker(request), attempts)
        return scheduler_pb2.RenewLeasesResponse(lost=[codec.encode_attempt(attempt) for attempt in lost])

    async def CompleteTickets(self, request, context):
        results = [
            (codec.decode_attempt(result.attempt), codec.decode_result(result)) for result in request.results
        ]
        transcripts = [codec_transcripts.decode_transcript(result) for result in request.results]
        recorded = [codec.decode_recorded(result) for result in request.results]
        verdicts = await self._scheduler.complete(_worker(request), results, transcripts, recorded)
        response = scheduler_pb2.CompleteTicketsResponse()
        for result, (verdict, reason) in zip(request.results, verdicts, strict=True):
            response.items.add(attempt=result.attempt, verdict=codec.VERDICTS[verdict], reason=reason)
        return response

    async def NextBatch(self, request, context):
        plan, stop = await self._scheduler.next_batch(
            _worker(request), request.ranks, _wait(request.wait_s), request.lost_replays
        )
        best, kept = self._scheduler.kept_versions()
        response = scheduler_pb2.NextBatchResponse(stop=stop, best_version=best, keep_versions=kept)
        if plan is not None:
            response.plan.CopyFrom(codec.encode_plan(plan))
        return response

    async def CommitBatch(self, request, context):
        await self._scheduler.commit(
            _worker(request), request.batch_id, request.version, _finite(request.metrics)
        )
        return scheduler_pb2.CommitBatchResponse()

    async def RecordCheckpoint(self, request, context):
        consumed = codec.decode_ranges(request.consumed)
        await self._scheduler.record_checkpoint(_worker(request), consumed, request.version)
        return scheduler_pb2.RecordCheckpointResponse()

    async def Reconcile(self, request, context):
        rolled_back = await self._scheduler.reconcile(
            _worker(request),
            request.version,
            request.next_batch_id,
            codec.decode_ranges(request.consumed),
        )
        return scheduler_pb2.ReconcileResponse(rolled_back=rolled_back)

    async def LeaseReference(self, request, context):
        lease, waiting_tokens, stop = await self._scheduler.lease_columns(
            request.role or REFERENCE, _worker(request), request.credit_tokens, _wait(request.wait_s)
        )
        return codec_reference.encode_lease(lease, request.ranks, waiting_tokens, stop)

    async def CompleteReference(self, request, context):
        results, lost = codec_reference.decode_results(request)
        refused = await self._scheduler.complete_columns(
            request.role or REFERENCE, _worker(request), request.fence, results, lost
        )
        return scheduler_pb2.CompleteReferenceResponse(refused=refused)

    async def GetStatus(self, request, context):
        return encode_status(self._scheduler.status())

    async def ListTickets(self, request, context):
        return codec_tickets.encode_tickets(self._scheduler.tables, request.limit, time.monotonic())

    async def StopRun(self, request, context):
        self._scheduler.stop(request.reason)
        return scheduler_pb2.StopRunResponse()

    async def SetParallelism(self, request, context):
        epoch, outcome = await self._scheduler.set_parallelism(
            codec.decode_stage(request.stage),
            codec.decode_request(request),
            request.pin,
            _wait(request.wait_s),
        )
        response = scheduler_pb2.SetParallelismResponse(epoch=epoch)
        if outcome is not None:
            response.outcome.CopyFrom(encode_switch(outcome))
        return response

    async def MoveDevices(self, request, context):
        move = await self._scheduler.move_devices(
            codec.decode_stage(request.giver),
            codec.decode_stage(request.taker),
            request.devices,
            codec.decode_layouts(request),
            _wait(request.wait_s),
        )
        return scheduler_pb2.MoveDevicesResponse(move=None if move is None else codec.encode_move(move))


def _worker(request) -> WorkerId:
    return WorkerId(request.worker.name, request.worker.incarnation)


def _wait(seconds: float) -> float:
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _finite(numbers) -> dict[str, float]:
    return {name: value for name, value in list(numbers.items())[:GAUGES] if math.isfinite(value)}
