"""A switch's command, figures and outcome: as values, in messages, and as the ledger stores them."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from earl.config.scheduler import SwitchConfig, SwitchDeadlines, SwitchStage
from earl.errors import ConfigError, ReshapeRefused, RpcError, StaleEpoch
from earl.parallelism import Parallelism
from earl.parallelism_codec import figures_of
from earl.reparallelize import LOGPROB_TOLERANCE, CommandSlot, SwitchCommand, SwitchOutcome, ended_switch
from earl.stack.codec import decode_switch
from earl.switch_codec import (
    decode_command,
    decode_ended,
    decode_outcome,
    encode_command,
    encode_ended,
    encode_outcome,
)
from earl.switch_figures import SwitchFigures
from earl.v1 import common_pb2, rollout_pb2, scheduler_pb2, trainer_pb2
from services.scheduler.journal.events import encode_changed, encode_switch
from services.scheduler.state.stored import decode, encode
from services.scheduler.state.switch_records import By, StageRecord, SwitchEnded, SwitchRecord

REQUESTS = (rollout_pb2.ReparallelizeRolloutRequest, trainer_pb2.ReparallelizeTrainerRequest)
RESPONSES = (rollout_pb2.ReparallelizeRolloutResponse, trainer_pb2.ReparallelizeTrainerResponse)
LAYOUT = Parallelism(2, 3, 5, 7)


def distinct() -> dict[str, Any]:
    """A value for every figure, none of them its default or another's."""
    none = SwitchFigures().figures()
    made = {
        name: type(value)(number / 4 if isinstance(value, float) else number)
        for number, (name, value) in enumerate(none.items(), 2)
        if name != "phases_s"
    }
    made["phases_s"] = {"moving": 0.125, "canaries": 0.0625}
    assert made.keys() == none.keys() and all(value != none[name] for name, value in made.items())
    return made


def record(**changes: Any) -> SwitchRecord:
    switch = SwitchRecord(
        epoch=3, before=(4, 1, 1, 1), after=(2, 2, 1, 1), reason="longer contexts", rolled_back=True,
        message="no room", by=By.SELECTOR, step=7, commanded={"rollout-0": 11}, **distinct(),
    )  # fmt: skip
    return replace(switch, **changes)


def test_each_stage_of_a_switch_has_the_deadline_of_its_name():
    seconds = {name: float(number) for number, name in enumerate(SwitchDeadlines.model_fields, 1)}
    deadlines = SwitchDeadlines(**seconds)
    assert {f"{stage}_s": stage.deadline_s(deadlines) for stage in SwitchStage} == seconds
    assert SwitchStage.LOAD.deadline_s(SwitchDeadlines(prepare_s=7.0)) == 7.0


# --- commands -------------------------------------------------------------------------------


def test_a_command_that_is_refused_takes_no_epoch_and_an_accepted_one_begins_once():
    slot: CommandSlot[str] = CommandSlot()
    begun: list[SwitchCommand | None] = []

    def refuse(newest: SwitchCommand | None) -> str:
        raise ReshapeRefused("another switch runs", "send the command again")

    def begin(newest: SwitchCommand | None) -> str:
        begun.append(newest)
        return f"outcome {len(begun)}"

    first = SwitchCommand(1, LAYOUT)
    with pytest.raises(ReshapeRefused):
        slot.accept(first, refuse)
    assert slot.pending is None
    assert slot.accept(first, begin) == slot.accept(first, refuse) == slot.pending == "outcome 1"
    for stale in (SwitchCommand(1, Parallelism()), SwitchCommand(0, LAYOUT)):
        with pytest.raises(StaleEpoch, match=f"epoch {stale.epoch} .* is not newer than epoch 1"):
            slot.accept(stale, begin)
    assert slot.accept(SwitchCommand(3, LAYOUT), begin) == "outcome 2"
    assert begun == [None, first]


# --- round trips ----------------------------------------------------------------------------


def test_every_figure_has_a_field_in_its_message_and_no_field_is_left_over() -> None:
    figures, deadlines = common_pb2.SwitchFigures.DESCRIPTOR, common_pb2.SwitchDeadlines.DESCRIPTOR
    assert list(figures.fields_by_name) == [figure.name for figure in fields(SwitchFigures)]
    assert list(deadlines.fields_by_name) == list(SwitchDeadlines.model_fields)


@pytest.mark.parametrize("kind", RESPONSES)
def test_an_outcome_survives_its_message(kind: Any) -> None:
    outcome = SwitchOutcome(epoch=3, parallelism=LAYOUT, rolled_back=True, message="why", **distinct())
    assert decode_outcome(kind.FromString(encode_outcome(outcome, kind).SerializeToString())) == outcome


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_command_survives_its_message(kind: Any) -> None:
    seconds = {name: float(number) for number, name in enumerate(SwitchDeadlines.model_fields, 1)}
    command = SwitchCommand(3, LAYOUT, SwitchDeadlines(**seconds), 0.25, "longer contexts")
    assert decode_command(kind.FromString(encode_command(command, kind).SerializeToString())) == command


def test_a_switch_that_a_worker_made_by_itself_survives_its_message() -> None:
    command = SwitchCommand(3, LAYOUT, reason="switch.plan: from step 2 on")
    outcome = SwitchOutcome(epoch=3, parallelism=LAYOUT, rolled_back=True, message="why", **distinct())
    made = ended_switch(Parallelism(2), command, outcome)
    assert (made.before, made.after, made.reason) == (Parallelism(2), LAYOUT, command.reason)
    assert decode_ended(scheduler_pb2.Switch.FromString(encode_ended(made).SerializeToString())) == made
    assert SwitchRecord.planned(made).target == LAYOUT


def test_a_stages_switch_reaches_status_and_bus_with_every_figure() -> None:
    shown = decode_switch(encode_switch(record()))
    assert shown.figures() == distinct()
    assert (shown.epoch, shown.before, shown.after, shown.reason) == (3, "dp4", "dp2·tp2", "longer contexts")
    assert shown.rolled_back and shown.message == "no room"
    changed = encode_changed(SwitchEnded("rollout", record()))
    assert figures_of(changed) == distinct() and changed.stage == common_pb2.STAGE_ROLLOUT
    assert (changed.stall_s, changed.moved_bytes) == (record().stall_s, record().moved_bytes)


def test_a_stages_record_survives_the_store() -> None:
    stage = StageRecord(epoch=3, replica=(2, 1, 1), switch=record(), last=record(epoch=2), costs_s=[0.5])
    assert decode("stage", "rollout", encode(stage)) == stage


# --- peers of before ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RESPONSES)
def test_figures_of_a_worker_that_knows_no_figures_message_are_read(kind: Any) -> None:
    outcome = SwitchOutcome(epoch=3, parallelism=LAYOUT, **distinct())
    response = encode_outcome(outcome, kind)
    response.ClearField("figures")
    read = decode_outcome(response)
    assert (read.stall_s, read.seconds, read.moved_bytes) == (
        outcome.stall_s,
        outcome.seconds,
        outcome.moved_bytes,
    )
    assert read.max_logprob_difference == outcome.max_logprob_difference


@pytest.mark.parametrize("kind", REQUESTS)
def test_what_a_command_leaves_out_is_the_default(kind: Any) -> None:
    request = kind(epoch=3, parallelism=common_pb2.Parallelism(tp=4), quiesce_s=1.5)
    assert decode_command(request) == SwitchCommand(3, Parallelism(1, 4), SwitchDeadlines(quiesce_s=1.5))
    assert decode_command(request).logprob_tolerance == LOGPROB_TOLERANCE == SwitchConfig().logprob_tolerance


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_a_deadline_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="verify_s"):
        decode_command(trainer_pb2.ReparallelizeTrainerRequest(epoch=3, verify_s=seconds))
    with pytest.raises(ConfigError, match="logprob_tolerance"):
        decode_command(rollout_pb2.ReparallelizeRolloutRequest(epoch=3, logprob_tolerance=math.nan))


def test_an_answer_without_a_parallelism_is_an_error() -> None:
    with pytest.raises(RpcError, match="does not name a parallelism"):
        decode_outcome(rollout_pb2.ReparallelizeRolloutResponse(epoch=3))


# --- figures --------------------------------------------------------------------------------


def test_figures_of_workers_are_combined() -> None:
    first = SwitchFigures(stall_s=0.5, moved_bytes=10, max_logprob_difference=0.25, peak_extra_bytes=3)
    second = SwitchFigures(stall_s=0.25, moved_bytes=5, max_logprob_difference=math.nan, cold=True)
    both = first.with_worker(second)
    assert (both.stall_s, both.moved_bytes, both.peak_extra_bytes, both.cold) == (0.5, 15, 3, True)
    assert math.isnan(both.max_logprob_difference)
    assert math.isnan(second.with_worker(first).max_logprob_difference)
    assert first.with_worker(SwitchFigures()) == first == SwitchFigures().with_worker(first)


def test_each_phase_is_that_of_the_slowest_worker() -> None:
    first = SwitchFigures(phases_s={"moving": 0.5, "slots": 0.25})
    second = SwitchFigures(phases_s={"moving": 0.75, "canaries": 1.0})
    both = {"moving": 0.75, "slots": 0.25, "canaries": 1.0}
    assert first.with_worker(second).phases_s == second.with_worker(first).phases_s == both


def test_figures_in_words_leave_out_what_is_zero() -> None:
    assert SwitchFigures(stall_s=1.0).words() == []
    assert SwitchFigures(sequences_continued=1200, moved_bytes=3 << 19).words() == [
        "1,200 sequences continued",
        "1.5 MiB moved",
    ]
    phases_s = {"groups": 0.125, "moving": 0.5, "slots": 0.0, "canaries": 0.25}
    assert SwitchFigures(phases_s=phases_s).words() == [
        "longest phases: moving 0.50 s, canaries 0.25 s, groups 0.12 s"
    ]
