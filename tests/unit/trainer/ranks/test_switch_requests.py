"""Commands of switches: each carried out at most once, older ones refused, repeated ones answered alike."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from earl.errors import ConfigError, DeadlineExceeded, IllegalParallelism, StaleEpoch
from earl.parallelism import Parallelism
from earl.parallelism_codec import encode_parallelism
from earl.v1 import trainer_pb2
from services.trainer.api.codec_switch import carried_out, decode_command, encode_outcome
from services.trainer.ranks.switch_requests import Command, Deadlines, Epochs, Outcome

DP2, TP2 = Parallelism(2), Parallelism(1, 2)
LONG = Deadlines(60.0, 60.0, 60.0, 60.0)


def of_two(parallelism: Parallelism) -> None:
    if parallelism.devices != 2:
        raise IllegalParallelism(f"{parallelism} of 2 ranks")


def command(epoch: int, parallelism: Parallelism = TP2, deadlines: Deadlines = LONG) -> Command:
    return Command(epoch, parallelism, deadlines, 1e-3)


@pytest.fixture
def epochs() -> Epochs:
    return Epochs(DP2, of_two)


def test_a_command_is_begun_once_and_all_who_asked_for_it_get_its_outcome(epochs):
    epochs.ask(command(3))
    assert epochs.wanted
    assert epochs.begin() == command(3)
    assert not epochs.wanted
    while_it_runs = epochs.ask(command(3))
    assert not epochs.wanted and not while_it_runs.done()


def test_an_outcome_says_how_the_stage_is_cut_and_stays_known(epochs):
    asked = epochs.ask(command(3))
    epochs.begin()
    outcome = Outcome(3, TP2, stall_s=0.25)
    epochs.end(outcome)
    assert asked.result(0) == outcome == epochs.ask(command(3)).result(0)
    assert (epochs.parallelism, epochs.epoch) == (TP2, 3)
    assert not epochs.wanted


def test_what_was_rolled_back_leaves_parallelism_and_epoch(epochs):
    epochs.ask(command(3))
    epochs.begin()
    epochs.end(Outcome(3, DP2, "log-probs differ by 1"))
    assert (epochs.parallelism, epochs.epoch) == (DP2, 0)
    with pytest.raises(StaleEpoch, match="epoch 2: epoch 3"):
        epochs.ask(command(2))


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_older_epochs_are_refused(epochs, epoch):
    epochs.ask(command(3))
    with pytest.raises(StaleEpoch):
        epochs.ask(command(epoch))


def test_one_epoch_is_of_one_parallelism(epochs):
    epochs.ask(command(3))
    with pytest.raises(StaleEpoch, match="was of tp2"):
        epochs.ask(command(3, DP2))


def test_what_is_illegal_takes_no_epoch(epochs):
    with pytest.raises(IllegalParallelism, match="dp4"):
        epochs.ask(command(3, Parallelism(4)))
    assert not epochs.wanted
    epochs.ask(command(1))
    assert epochs.wanted


def test_a_newer_command_takes_the_place_of_one_that_waits(epochs):
    old = epochs.ask(command(3))
    epochs.ask(command(4, DP2))
    assert old.result(0).rolled_back and "epoch 4" in old.result(0).message
    begun = epochs.begin()
    assert begun is not None and begun.epoch == 4


def test_a_newer_command_waits_for_one_that_runs(epochs):
    epochs.ask(command(3))
    epochs.begin()
    newer = epochs.ask(command(4, DP2))
    epochs.end(Outcome(3, TP2))
    assert epochs.wanted and not newer.done()


def test_no_boundary_comes_any_more(epochs):
    asked = epochs.ask(command(3))
    epochs.close("the trainer leaves")
    assert asked.result(0) == replace(asked.result(0), message="the trainer leaves", parallelism=DP2)
    epochs.close("again")


def test_commands_pass_from_rank_to_rank():
    one = command(7, Parallelism(2, 2, 3))
    other = Command.decode(one.encode())
    assert other == one
    assert other.asked_s == pytest.approx(one.asked_s, abs=1.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_stage_without_a_deadline_is_refused(seconds):
    with pytest.raises(ConfigError, match="verify_s"):
        Deadlines(1.0, 1.0, 1.0, seconds)


def request(prepare_s: float = 60.0, reason: str = "") -> trainer_pb2.ReparallelizeTrainerRequest:
    return trainer_pb2.ReparallelizeTrainerRequest(
        epoch=3, parallelism=encode_parallelism(TP2), prepare_s=prepare_s, quiesce_s=60, switch_s=60,
        verify_s=60, reason=reason, logprob_tolerance=1e-3,
    )  # fmt: skip


def test_requests_and_responses_say_what_commands_and_outcomes_do():
    assert decode_command(request(reason="length")) == replace(command(3), reason="length")
    with pytest.raises(ConfigError, match="prepare_s"):
        decode_command(request(prepare_s=0))
    with pytest.raises(IllegalParallelism, match="dp = 0"):
        decode_command(trainer_pb2.ReparallelizeTrainerRequest(epoch=3))
    said = encode_outcome(Outcome(3, DP2, "too far apart", 0.5, 2.0, 10, 20, 0.125))
    assert said == trainer_pb2.ReparallelizeTrainerResponse(
        epoch=3, parallelism=encode_parallelism(DP2), rolled_back=True, message="too far apart", stall_s=0.5,
        moved_bytes=10, peak_extra_bytes=20, max_logprob_difference=0.125, seconds=2.0,
    )  # fmt: skip


def test_a_command_that_no_boundary_came_for_is_withdrawn(epochs):
    short = Deadlines(0.01, 60.0, 60.0, 60.0)
    outcome = asyncio.run(carried_out(epochs, command(3, deadlines=short)))
    assert outcome.rolled_back and "0.01 s" in outcome.message
    assert not epochs.wanted
    # Told again, it is the same.
    assert asyncio.run(carried_out(epochs, command(3, deadlines=short))) == outcome


def test_who_stops_waiting_stops_nothing(epochs):
    async def ask_and_leave() -> None:
        asking = asyncio.create_task(carried_out(epochs, command(3)))
        # It asks before it waits.
        await asyncio.sleep(0)
        assert epochs.wanted
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(ask_and_leave())
    assert epochs.begin() == command(3)
    epochs.end(Outcome(3, TP2))
    assert asyncio.run(carried_out(epochs, command(3))) == Outcome(3, TP2)


def test_one_that_begins_and_does_not_end_is_a_missed_deadline(epochs, monkeypatch):
    monkeypatch.setattr("services.trainer.api.codec_switch.SLACK_S", 0.0)
    epochs.ask(command(3))
    epochs.begin()
    short = Deadlines(0.01, 0.01, 0.01, 0.01)
    with pytest.raises(DeadlineExceeded, match="has begun"):
        asyncio.run(carried_out(epochs, command(3, deadlines=short)))
