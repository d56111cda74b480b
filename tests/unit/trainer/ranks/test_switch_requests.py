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
from services.trainer.ranks.codec import command_from_rank0, command_to_ranks
from services.trainer.ranks.switch_requests import SwitchRequests

DP2, TP2 = Parallelism(2), Parallelism(1, 2)
LONG = SwitchDeadlines()
SHORT = SwitchDeadlines(**dict.fromkeys(SwitchDeadlines.model_fields, 0.01))


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
def switches() -> SwitchRequests:
    return SwitchRequests(DP2, of_two)


def test_a_command_is_begun_once_and_all_who_asked_for_it_get_its_outcome(switches):
    switches.ask(command(3))
    assert switches.waiting
    assert switches.begin() == command(3)
    assert not switches.waiting
    while_it_runs = switches.ask(command(3))
    assert not switches.waiting and not while_it_runs.done()


def test_an_outcome_has_the_stages_parallelism_and_stays_known(switches):
    asked = switches.ask(command(3))
    switches.begin()
    switches.end(ended := outcome(stall_s=0.25))
    assert asked.result(0) == ended == switches.ask(command(3)).result(0)
    assert (switches.parallelism, switches.epoch) == (TP2, 3)
    assert not switches.waiting


def test_what_was_rolled_back_leaves_parallelism_and_epoch(switches):
    switches.ask(command(3))
    switches.begin()
    switches.end(outcome(DP2, "log-probs differ by 1"))
    assert (switches.parallelism, switches.epoch) == (DP2, 0)
    with pytest.raises(StaleEpoch, match=r"epoch 2 .* is not newer than epoch 3"):
        switches.ask(command(2))


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_older_epochs_are_refused(switches, epoch):
    switches.ask(command(3))
    with pytest.raises(StaleEpoch):
        switches.ask(command(epoch))


def test_one_epoch_is_of_one_parallelism(switches):
    switches.ask(command(3))
    with pytest.raises(StaleEpoch, match=r"epoch 3 .* is not newer than epoch 3 \(tp2\)"):
        switches.ask(command(3, DP2))


def test_what_is_illegal_takes_no_epoch(switches):
    with pytest.raises(IllegalParallelism, match="dp4"):
        switches.ask(command(3, Parallelism(4)))
    assert not switches.waiting
    switches.ask(command(1))
    assert switches.waiting


def test_a_newer_command_takes_the_place_of_one_that_waits(switches):
    old = switches.ask(command(3))
    switches.ask(command(4, DP2))
    assert old.result(0).rolled_back and "epoch 4" in old.result(0).message
    begun = switches.begin()
    assert begun is not None and begun.epoch == 4


def test_a_newer_command_waits_for_one_that_runs(switches):
    switches.ask(command(3))
    switches.begin()
    newer = switches.ask(command(4, DP2))
    switches.end(outcome())
    assert switches.waiting and not newer.done()


def test_no_boundary_comes_any_more(switches):
    asked = switches.ask(command(3))
    switches.close("the trainer leaves")
    assert asked.result(0) == replace(asked.result(0), message="the trainer leaves", parallelism=DP2)
    switches.close("again")


def test_commands_pass_from_rank_to_rank():
    one = replace(command(7, Parallelism(2, 2, 3)), reason="length", requested_s=time.monotonic() - 5.0)
    other = command_from_rank0(command_to_ranks(one))
    assert other == one
    assert other.requested_s == pytest.approx(one.requested_s, abs=1.0)


def test_a_command_that_no_boundary_came_for_is_withdrawn(switches):
    ended = asyncio.run(switches.carried_out(command(3, deadlines=SHORT)))
    assert ended.rolled_back and "0.01 s" in ended.message
    assert not switches.waiting
    # Told again, it is the same.
    assert asyncio.run(switches.carried_out(command(3, deadlines=SHORT))) == ended


def test_who_stops_waiting_stops_nothing(switches):
    async def ask_and_leave() -> None:
        asking = asyncio.create_task(switches.carried_out(command(3)))
        # It asks before it waits.
        await asyncio.sleep(0)
        assert switches.waiting
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(ask_and_leave())
    assert switches.begin() == command(3)
    switches.end(outcome())
    assert asyncio.run(switches.carried_out(command(3))) == outcome()


def test_one_that_begins_and_does_not_end_is_a_missed_deadline(switches, monkeypatch):
    monkeypatch.setattr(switch_requests, "SLACK_S", 0.0)
    switches.ask(command(3))
    switches.begin()
    with pytest.raises(DeadlineExceeded, match="has begun"):
        asyncio.run(switches.carried_out(command(3, deadlines=SHORT)))
