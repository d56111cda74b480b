"""Between a stage's parallelism as values and the contract's messages: status, switches, requests."""

from __future__ import annotations

from collections.abc import Mapping

from earl.errors import LedgerError
from earl.parallelism import Parallelism
from earl.parallelism_codec import encode_parallelism
from earl.v1 import common_pb2, scheduler_pb2
from services.scheduler.journal.events import STAGE_NUMBERS, encode_switch
from services.scheduler.monitor.workers import STAGES
from services.scheduler.parallelism.switch_state import Switching
from services.scheduler.selector import stages


def decode_stage(number: common_pb2.Stage) -> str:
    """The stage's name. Raises LedgerError for a number that no stage has."""
    if number not in STAGES:
        raise LedgerError(f"stage {number} is none", f"name one of {', '.join(STAGE_NUMBERS)}")
    return STAGES[number]


def decode_request(request: scheduler_pb2.SetParallelismRequest) -> tuple[int, Parallelism] | None:
    """(dp, or 0 if it was left open; one replica) that an operator asks for; None to change only the pin."""
    if not request.HasField("parallelism"):
        return None
    degrees = request.parallelism
    return degrees.dp, Parallelism(1, degrees.tp or 1, degrees.cp or 1, degrees.pp or 1)


def encode_stages(
    switching: Switching, verdicts: Mapping[str, stages.SelectorVerdict]
) -> list[scheduler_pb2.StageStatus]:
    """The stages that have workers: what each runs with, the selector's last verdict, and its switches."""
    statuses = []
    for number, name in sorted(STAGES.items()):
        if not switching.devices(name):
            continue
        status = scheduler_pb2.StageStatus(stage=number)  # type: ignore[arg-type]
        running, stage, verdict = switching.running(name), switching.stage(name), verdicts.get(name)
        if running is not None:
            status.running.CopyFrom(encode_parallelism(running))
        if verdict is not None:
            status.chosen.CopyFrom(encode_parallelism(verdict.chosen))
            status.step, status.sentence = verdict.decision.step, verdict.sentence
        status.pinned, status.epoch = stage.pinned, stage.epoch
        if stage.switch is not None:
            status.switching.CopyFrom(encode_switch(stage.switch))
        if stage.last is not None:
            status.last.CopyFrom(encode_switch(stage.last))
        statuses.append(status)
    return statuses
