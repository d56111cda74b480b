"""The scheduler's messages ↔ the stack's values, and the calls that the launcher and commands make."""

from __future__ import annotations

from collections.abc import Mapping

from earl.parallelism_codec import decode_parallelism, figures_of
from earl.reparallelize import StageSwitch
from earl.rpc.access import OPEN, Access
from earl.rpc.client import Client
from earl.stack.status import (
    ConfidenceBounds,
    EvaluationStatus,
    Gain,
    LedgerStatus,
    Lengths,
    RoleState,
    RunStatus,
    StageState,
    TicketLease,
    Transfers,
    WorkerState,
)
from earl.v1 import common_pb2, scheduler_pb2, scheduler_pb2_grpc


class OperatorClient:
    """An operator's side of SchedulerService; a viewer's, but for what changes the run."""

    def __init__(self, address: str, access: Access = OPEN) -> None:
        self._client = Client(
            address, scheduler_pb2_grpc.SchedulerServiceStub, token=access.token, tls=access.tls
        )

    async def status(self, deadline_s: float) -> RunStatus:
        """A snapshot; raises ServiceUnavailable or DeadlineExceeded."""
        answer = await self._client.call("GetStatus", scheduler_pb2.GetStatusRequest(), deadline_s=deadline_s)
        return decode_status(answer)

    async def oldest_leases(self, limit: int, deadline_s: float) -> tuple[TicketLease, ...]:
        """At most `limit` tickets that are being played, the longest first; raises as `status` does."""
        request = scheduler_pb2.ListTicketsRequest(limit=limit)
        answer = await self._client.call("ListTickets", request, deadline_s=deadline_s)
        return decode_leases(answer)

    async def stop_run(self, reason: str, deadline_s: float) -> None:
        """Ends the run at its next boundary; raises as `status` does."""
        request = scheduler_pb2.StopRunRequest(reason=reason)
        await self._client.call("StopRun", request, deadline_s=deadline_s)

    async def set_parallelism(
        self, stage: str, degrees: Mapping[str, int] | None, *, pin: bool, wait_s: float, deadline_s: float
    ) -> tuple[int, StageSwitch[str] | None]:
        """Cuts a stage so, or with None only pins or unpins it: (epoch, how the switch ended, if it has).

        wanted: degrees by name; a dp that is left out follows from the devices.

        Raises IllegalParallelism, LedgerError, and as `status` does.
        """
        name = f"STAGE_{stage.upper()}"
        request = scheduler_pb2.SetParallelismRequest(stage=name, pin=pin, wait_s=wait_s)  # type: ignore[arg-type]
        if degrees is not None:
            request.parallelism.CopyFrom(common_pb2.Parallelism(**degrees))
        answer = await self._client.call("SetParallelism", request, deadline_s=deadline_s)
        return answer.epoch, decode_switch(answer.outcome) if answer.HasField("outcome") else None

    async def close(self) -> None:
        await self._client.close()


def decode_leases(answer: scheduler_pb2.ListTicketsResponse) -> tuple[TicketLease, ...]:
    kinds = {common_pb2.PURPOSE_WARMUP: "warmup", common_pb2.PURPOSE_EVALUATE: "evaluate"}
    return tuple(
        TicketLease(
            ticket.ticket_id,
            ticket.worker,
            ticket.age_s,
            ticket.attempt,
            ticket.evaluation or kinds.get(ticket.purpose, "train"),
        )
        for ticket in answer.tickets
        if ticket.state == scheduler_pb2.TICKET_STATE_LEASED
    )


def decode_status(answer: scheduler_pb2.GetStatusResponse) -> RunStatus:
    ledger = answer.ledger
    return RunStatus(
        run=answer.run,
        phase=answer.phase,
        step=answer.step,
        steps=answer.steps,
        version=answer.version,
        ledger=LedgerStatus(
            issued=ledger.issued,
            trained=ledger.trained,
            evaluated=ledger.evaluated,
            dropped=dict(ledger.dropped),
            pending=ledger.pending,
            leased=ledger.leased,
            ready=ledger.ready,
            planned=ledger.planned,
        ),
        workers=tuple(decode_worker(worker) for worker in answer.workers),
        evaluations=tuple(decode_evaluation(item) for item in answer.evaluations),
        episode_tokens=decode_lengths(answer.episode_tokens),
        turn_tokens=decode_lengths(answer.turn_tokens),
        metrics=dict(answer.metrics),
        elapsed_s=answer.elapsed_s,
        done=answer.done,
        message=answer.message,
        best_version=answer.best_version,
        roles=tuple(RoleState(role.role, role.waiting, role.leased, role.done) for role in answer.roles),
        stages=tuple(decode_stage(stage) for stage in answer.stages),
        heartbeat_s=answer.heartbeat_s,
    )


def decode_evaluation(item: scheduler_pb2.EvaluationResult) -> EvaluationStatus:
    gain = None
    if item.HasField("gain"):
        bounds = ConfidenceBounds(item.gain_low, item.gain_high) if item.HasField("gain_low") else None
        gain = Gain(item.gain, bounds, item.gain_episodes)
    return EvaluationStatus(
        name=item.name,
        version=item.version,
        episodes=item.episodes,
        done=item.done,
        failed=item.failed,
        win_rate=item.win_rate,
        mean_reward=item.mean_reward,
        metrics=dict(item.metrics),
        win_bounds=ConfidenceBounds(item.win_low, item.win_high) if item.done else None,
        reward_bounds=ConfidenceBounds(item.reward_low, item.reward_high) if item.done > 1 else None,
        gain=gain,
    )


def decode_worker(worker: scheduler_pb2.WorkerStatus) -> WorkerState:
    return WorkerState(
        name=worker.worker.name,
        stage=stage_name(worker.worker.stage),
        parallelism=str(decode_parallelism(worker.parallelism)),
        capacity=worker.capacity,
        running=worker.running,
        version=worker.version,
        silent_s=worker.silent_s,
        gauges=dict(worker.gauges),
        transfers={
            item.path: Transfers(item.size_bytes, item.seconds, item.retries) for item in worker.transfers
        },
    )


def decode_stage(stage: scheduler_pb2.StageStatus) -> StageState:
    return StageState(
        name=stage_name(stage.stage),
        running=str(decode_parallelism(stage.running)) if stage.HasField("running") else "",
        chosen=str(decode_parallelism(stage.chosen)) if stage.HasField("chosen") else "",
        sentence=stage.sentence,
        pinned=stage.pinned,
        epoch=stage.epoch,
        switching=decode_switch(stage.switching) if stage.HasField("switching") else None,
        last=decode_switch(stage.last) if stage.HasField("last") else None,
    )


def decode_switch(switch: scheduler_pb2.Switch) -> StageSwitch[str]:
    return StageSwitch(
        epoch=switch.epoch,
        before=str(decode_parallelism(switch.before)),
        after=str(decode_parallelism(switch.after)),
        reason=switch.reason,
        rolled_back=switch.rolled_back,
        message=switch.message,
        **figures_of(switch),
    )


def stage_name(stage: common_pb2.Stage) -> str:
    """For example "rollout"."""
    return common_pb2.Stage.Name(stage).removeprefix("STAGE_").lower()


def decode_lengths(lengths: scheduler_pb2.LengthQuantiles) -> Lengths:
    return Lengths(lengths.mean, lengths.p50, lengths.p95, lengths.max)
