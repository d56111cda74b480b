"""Between the messages of earl.v1.RolloutService and the pool's values."""

from __future__ import annotations

from dataclasses import fields

from earl.parallelism import Parallelism
from earl.v1 import rollout_pb2
from services.rollout.pool.switch import Command, SwitchReport
from services.rollout.worker.ticket_codec import encode_parallelism


def decode_command(request: rollout_pb2.ReparallelizeRolloutRequest) -> Command:
    """A deadline or tolerance of 0 is the default. Raises IllegalParallelism."""
    cut = request.parallelism
    given = {
        name: value
        for name in ("prepare_s", "quiesce_s", "switch_s", "verify_s", "logprob_tolerance")
        if (value := getattr(request, name))
    }
    # A degree that is not given is 1.
    degrees = (max(1, degree) for degree in (cut.dp, cut.tp, cut.cp, cut.pp))
    return Command(request.epoch, Parallelism(*degrees), **given, reason=request.reason)


def encode_report(report: SwitchReport) -> rollout_pb2.ReparallelizeRolloutResponse:
    figures = {field.name: getattr(report, field.name) for field in fields(report)}
    figures["parallelism"] = encode_parallelism(report.parallelism)
    return rollout_pb2.ReparallelizeRolloutResponse(**figures)
