"""A whole run whose devices go from one stage to the other again and again, and each time something is killed
in the middle.

Where in the move the kill falls follows from when it comes. Whatever is killed: the move ends as asked or is
rolled back, all stages soon work with the devices that they hold, which are never more than the pool,
training goes on, and at the end the ledger adds up.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fleet import SETTLE_S, Fleet
from tests.support.launched import Launched, assert_ledger_adds_up, launch_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
POOL = 4
# When the victim is killed, as parts of the time that an undisturbed move took: a schedule of faults. The
# assertions hold wherever in the move a kill falls, and also before or after it.
MOMENTS = (0.05, 0.3, 0.55, 0.8)
# A part of the command line of what is killed, and which of its descendants that is, oldest first, unless it
# is the process itself.
VICTIMS: dict[str, tuple[str, int | None]] = {
    "an engine": ("services.rollout ", 1),
    "the newest process of the worker": ("services.rollout ", -1),
    "the worker": ("services.rollout ", None),
    "a rank of the trainer": ("services.trainer ", -1),
    "the trainer": ("services.trainer ", None),
    "the scheduler": ("services.scheduler ", None),
}
REFERENCE_VICTIMS: dict[str, tuple[str, int | None]] = {
    "a process of the reference stage": ("services.trainer.reference ", -1),
    "the reference stage": ("services.trainer.reference ", None),
    "the scheduler": ("services.scheduler ", None),
}


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    with launch_in(tmp_path, forked=True) as run:
        yield run


@pytest.mark.parametrize("victim", VICTIMS)
def test_a_move_ends_or_is_rolled_back_and_training_goes_on(launched: Launched, victim: str) -> None:
    moves_with_kills(launched, POOL, "trainer", *VICTIMS[victim])


@pytest.mark.parametrize("victim", REFERENCE_VICTIMS)
def test_so_does_a_move_of_the_reference_stages_devices(launched: Launched, victim: str) -> None:
    keys = {"trainer__kl_coefficient": "0.05", "reference__dp": "2", "reference__device": "cpu"}
    moves_with_kills(launched, POOL + 2, "reference", *REFERENCE_VICTIMS[victim], **keys)


def moves_with_kills(
    launched: Launched, pool: int, stage: str, part: str, child: int | None, **keys: str
) -> None:
    """A run in which a device goes from `stage` to rollout and back, and something is killed each time."""
    launched.start(
        scheduler__steps="99999",
        scheduler__selector="static",
        scheduler__staleness="1",
        stack__pool_devices=str(pool),
        stack__restarts="99",
        rollout__engines="2",
        rollout__device="cpu",
        trainer__ranks="2",
        trainer__device="cpu",
        evaluation__episodes="0",
        switch__retry_s="0",
        **keys,
    )
    launched.until(r"train [1-9]\d*/")
    fleet = Fleet(launched)
    left_alone = fleet.moved(fleet.move(stage, "rollout", 1))
    assert not left_alone.rolled_back and 0 < left_alone.seconds < SETTLE_S
    rollout = left_alone.holds["rollout"]

    for moment in MOMENTS:
        # A step may have been trained, and the move have ended, without what was killed last.
        fleet.process(part)
        giver, taker = ("rollout", stage) if rollout == 3 else (stage, "rollout")
        number = fleet.move(giver, taker, 1)
        time.sleep(moment * left_alone.seconds)
        fleet.kill(part, child)
        move = fleet.moved(number)
        held = move.holds if move.rolled_back else move.after
        assert move.number == number and move.holds == held, move
        assert sum(move.holds.values()) <= pool, move
        rollout = move.holds["rollout"]
        kept = json.loads((launched.run_directory / "devices.json").read_text())
        assert {stage: kept[stage] for stage in move.holds} == move.holds

    assert launched.process is not None
    launched.process.send_signal(signal.SIGINT)
    code, figures = launched.finish()
    assert code == 130, launched.said
    assert_ledger_adds_up(figures)
    metrics = [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").open()]
    kept_steps = {(line["phase"], line["step"]): line["sequences"] for line in metrics}
    assert figures["trained"] == sum(kept_steps.values())
    launched.assert_nothing_left()
