"""Commands of switches: each carried out at most once, older ones refused, repeated ones answered alike."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from earl.config.scheduler import SwitchDeadlines
from earl.errors import DeadlineExceeded, IllegalParallelism, StaleEpoch
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand, SwitchOutcome
from services.trainer.ranks import switch_requests
from services.trainer.ranks.switch_requests import Epochs, command_from_rank0, command_to_ranks

DP2, TP2 = Parallelism(2), Parallelism(1, 2)
LONG = SwitchDeadlines()
SHORT = SwitchDeadlines(prepare_s=0.01, quiesce_s=0.01, switch_s=0.01, verify_s=0.01)


def outcome(parallelism: Parallelism = TP2, message: str = "", **figures: float) -> SwitchOutcome:
    return SwitchOutcome(
        epoch=3,
        parallelism=parallelism,
        rolled_back=bool(message),
        message=message,
        **figures,  # type: ignore
    )


def of_two(parallelism: Parallelism) -> None:
    if parallelism.devices != 2:
        raise IllegalParallelism(f"{parallelism} of 2 ranks")


def command(epoch: int, parallelism: Parallelism = TP2, deadlines: SwitchDeadlines = LONG) -> SwitchCommand:
    return SwitchCommand(epoch, parallelism, deadlines, 1e-3)


@pytest.fixture
def epochs() -> Epochs:
    return Epochs(DP2, of_two)


def test_a_command_is_begun_once_and_all_who_asked_for_it_get_its_outcome(epochs):
    epochs.ask(command(3))
    assert epochs.waiting
    assert epochs.begin() == command(3)
    assert not epochs.waiting
    while_it_runs = epochs.ask(command(3))
    assert not epochs.waiting and not while_it_runs.done()


def test_an_outcome_says_how_the_stage_is_cut_and_stays_known(epochs):
    asked = epochs.ask(command(3))
    epochs.begin()
    epochs.end(ended := outcome(stall_s=0.25))
    assert asked.result(0) == ended == epochs.ask(command(3)).result(0)
    assert (epochs.parallelism, epochs.epoch) == (TP2, 3)
    assert not epochs.waiting


def test_what_was_rolled_back_leaves_parallelism_and_epoch(epochs):
    epochs.ask(command(3))
    epochs.begin()
    epochs.end(outcome(DP2, "log-probs differ by 1"))
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
    assert not epochs.waiting
    epochs.ask(command(1))
    assert epochs.waiting


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
    epochs.end(outcome())
    assert epochs.waiting and not newer.done()


def test_no_boundary_comes_any_more(epochs):
    asked = epochs.ask(command(3))
    epochs.close("the trainer leaves")
    assert asked.result(0) == replace(asked.result(0), message="the trainer leaves", parallelism=DP2)
    epochs.close("again")


def test_commands_pass_from_rank_to_rank():
    one = replace(command(7, Parallelism(2, 2, 3)), reason="length", asked_s=time.monotonic() - 5.0)
    other = command_from_rank0(command_to_ranks(one))
    assert other == one
    assert other.asked_s == pytest.approx(one.asked_s, abs=1.0)


def test_a_command_that_no_boundary_came_for_is_withdrawn(epochs):
    ended = asyncio.run(epochs.carried_out(command(3, deadlines=SHORT)))
    assert ended.rolled_back and "0.01 s" in ended.message
    assert not epochs.waiting
    # Told again, it is the same.
    assert asyncio.run(epochs.carried_out(command(3, deadlines=SHORT))) == ended


def test_who_stops_waiting_stops_nothing(epochs):
    async def ask_and_leave() -> None:
        asking = asyncio.create_task(epochs.carried_out(command(3)))
        # It asks before it waits.
        await asyncio.sleep(0)
        assert epochs.waiting
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(ask_and_leave())
    assert epochs.begin() == command(3)
    epochs.end(outcome())
    assert asyncio.run(epochs.carried_out(command(3))) == outcome()


def test_one_that_begins_and_does_not_end_is_a_missed_deadline(epochs, monkeypatch):
    monkeypatch.setattr(switch_requests, "SLACK_S", 0.0)
    epochs.ask(command(3))
    epochs.begin()
    with pytest.raises(DeadlineExceeded, match="has begun"):
        asyncio.run(epochs.carried_out(command(3, deadlines=SHORT)))
