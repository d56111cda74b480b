"""The scheduler's messages ↔ the stack's values, and the calls that the launcher and commands make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from earl.message_fields import from_message
from earl.parallelism import POOLED
from earl.parallelism_codec import decode_parallelism, figures_of
from earl.rpc.access import OPEN, Access
from earl.rpc.client import Client
from earl.stack.status import (
    ConfidenceBounds,
    DeviceMoveState,
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
from earl.switch_figures import StageSwitch
from earl.v1 import common_pb2, scheduler_pb2, scheduler_pb2_grpc


class OperatorClient:
    """An operator's side of SchedulerService; a viewer's, but for what changes the run."""

    def __init__(self, address: str, access: Access = OPEN) -> None:
        self._client = Client(
            address, scheduler_pb2_grpc.SchedulerServiceStub, token=access.token, tls=access.tls
        )

    async def status(self, deadline_s: float, retry_s: float | None = None) -> RunStatus:
        """A snapshot; raises ServiceUnavailable or DeadlineExceeded. retry_s: as of Client.call."""
        request = scheduler_pb2.GetStatusRequest()
        answer = await self._client.call("GetStatus", request, deadline_s=deadline_s, retry_s=retry_s)
        return decode_status(answer)

    async def tickets(
        self, limit: int, deadline_s: float, retry_s: float | None = None
    ) -> Sequence[scheduler_pb2.TicketStatus]:
        """Returns at most `limit` tickets of each state, longest in it first; raises as `status` does."""
        request = scheduler_pb2.ListTicketsRequest(limit=limit)
        answer = await self._client.call("ListTickets", request, deadline_s=deadline_s, retry_s=retry_s)
        return answer.tickets

    async def oldest_leases(
        self, limit: int, deadline_s: float, retry_s: float | None = None
    ) -> tuple[TicketLease, ...]:
        """Returns at most `limit` leased tickets, the longest lease first; raises as `status` does."""
        return decode_leases(await self.tickets(limit, deadline_s, retry_s))

    async def stop_run(self, reason: str, deadline_s: float) -> None:
        """Ends the run at its next boundary; raises as `status` does."""
        request = scheduler_pb2.StopRunRequest(reason=reason)
        await self._client.call("StopRun", request, deadline_s=deadline_s)

    async def set_parallelism(
        self, stage: str, degrees: Mapping[str, int] | None, *, pin: bool, wait_s: float, deadline_s: float
    ) -> tuple[int, StageSwitch[str] | None]:
        """Gives a stage this parallelism, or with None only pins or unpins it: (epoch, switch that ended).

        degrees: by name; a dp that is left out follows from the devices. Raises IllegalParallelism,
        LedgerError, and as `status` does.
        """
        name = f"STAGE_{stage.upper()}"
        request = scheduler_pb2.SetParallelismRequest(stage=name, pin=pin, wait_s=wait_s)  # type: ignore[arg-type]
        if degrees is not None:
            request.parallelism.CopyFrom(common_pb2.Parallelism(**degrees))
        answer = await self._client.call("SetParallelism", request, deadline_s=deadline_s)
        return answer.epoch, decode_switch(answer.outcome) if answer.HasField("outcome") else None

    async def move_devices(
        self,
        giver: str,
        taker: str,
        devices: int,
        *,
        layouts: Mapping[str, Mapping[str, int]] | None = None,
        wait_s: float,
        deadline_s: float,
    ) -> DeviceMoveState | None:
        """Moves devices from one stage to another: the move, ended or in progress; None if nothing moves.

        layouts: degrees of giver and taker afterwards, by stage, as `set_parallelism` takes them; a stage
        that is not there keeps its replicas. Raises IllegalParallelism, LedgerError, and as `status` does.
        """
        request = scheduler_pb2.MoveDevicesRequest(
            giver=f"STAGE_{giver.upper()}",  # type: ignore[arg-type]
            taker=f"STAGE_{taker.upper()}",  # type: ignore[arg-type]
            devices=devices,
            wait_s=wait_s,
        )
        wished = layouts or {}
        if giver in wished:
            request.giver_layout.CopyFrom(common_pb2.Parallelism(**wished[giver]))
        if taker in wished:
            request.taker_layout.CopyFrom(common_pb2.Parallelism(**wished[taker]))
        answer = await self._client.call("MoveDevices", request, deadline_s=deadline_s)
        return decode_move(answer.move) if answer.HasField("move") else None

    async def close(self) -> None:
        await self._client.close()


def decode_leases(tickets: Iterable[scheduler_pb2.TicketStatus]) -> tuple[TicketLease, ...]:
    kinds = {common_pb2.PURPOSE_WARMUP: "warmup", common_pb2.PURPOSE_EVALUATE: "evaluate"}
    return tuple(
        from_message(
            TicketLease,
            ticket,
            ticket=ticket.ticket_id,
            purpose=ticket.evaluation or kinds.get(ticket.purpose, "train"),
        )
        for ticket in tickets
        if ticket.state == scheduler_pb2.TICKET_STATE_LEASED
    )


def decode_status(answer: scheduler_pb2.GetStatusResponse) -> RunStatus:
    return from_message(
        RunStatus,
        answer,
        ledger=from_message(LedgerStatus, answer.ledger),
        workers=tuple(map(decode_worker, answer.workers)),
        evaluations=tuple(map(decode_evaluation, answer.evaluations)),
        episode_tokens=from_message(Lengths, answer.episode_tokens),
        turn_tokens=from_message(Lengths, answer.turn_tokens),
        roles=tuple(from_message(RoleState, role, name=role.role) for role in answer.roles),
        stages=tuple(map(decode_stage, answer.stages)),
        move=decode_move(answer.move) if answer.HasField("move") else None,
    )


def decode_move(move: scheduler_pb2.DeviceMove) -> DeviceMoveState:
    def division(split: scheduler_pb2.DeviceSplit) -> dict[str, int]:
        """The devices of the stages that the run has."""
        devices = {stage: getattr(split, stage) for stage in POOLED}
        return {stage: count for stage, count in devices.items() if count}

    before, after, holds = map(division, (move.before, move.after, move.holds))
    layouts = dict(move.layouts)
    return from_message(DeviceMoveState, move, before=before, after=after, holds=holds, layouts=layouts)


def decode_evaluation(item: scheduler_pb2.EvaluationResult) -> EvaluationStatus:
    gain = None
    if item.HasField("gain"):
        bounds = ConfidenceBounds(item.gain_low, item.gain_high) if item.HasField("gain_low") else None
        gain = Gain(item.gain, bounds, item.gain_episodes)
    return from_message(
        EvaluationStatus,
        item,
        win_bounds=ConfidenceBounds(item.win_low, item.win_high) if item.done else None,
        reward_bounds=ConfidenceBounds(item.reward_low, item.reward_high) if item.done > 1 else None,
        gain=gain,
    )


def decode_worker(worker: scheduler_pb2.WorkerStatus) -> WorkerState:
    return from_message(
        WorkerState,
        worker,
        name=worker.worker.name,
        stage=stage_name(worker.worker.stage),
        parallelism=str(decode_parallelism(worker.parallelism)),
        transfers={item.path: from_message(Transfers, item) for item in worker.transfers},
    )


def decode_stage(stage: scheduler_pb2.StageStatus) -> StageState:
    return from_message(
        StageState,
        stage,
        name=stage_name(stage.stage),
        running=str(decode_parallelism(stage.running)) if stage.HasField("running") else "",
        chosen=str(decode_parallelism(stage.chosen)) if stage.HasField("chosen") else "",
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
    """A stage's name, for example "rollout"."""
    return common_pb2.Stage.Name(stage).removeprefix("STAGE_").lower()
