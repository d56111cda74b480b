"""A whole run whose stages are cut anew again and again, and each time something is killed in the middle.

Where in the switch the kill falls follows from when it comes: at several parts of the time that a switch
takes when it is left alone. Whatever is killed, the stage is cut one way in all of its workers soon after,
training goes on, and at the end the ledger adds up.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.fleet import SETTLE_S, Fleet
from tests.support.launched import Launched, assert_ledger_adds_up, launch_in

# When the victim is killed, as parts of the time that an undisturbed switch took: a schedule of faults. The
# assertions hold wherever in the switch a kill falls, and also before or after it.
MOMENTS = (0.05, 0.3, 0.55, 0.8)


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    with launch_in(tmp_path, forked=True) as run:
        yield run


# The default suite kills one of them, once.
DEFAULT = "an old engine"
# The stage that is switched; a part of the command line of what is killed meanwhile, and which of its
# descendants that is, oldest first, unless it is the process itself.
VICTIMS: dict[str, tuple[str, str, int | None]] = {
    DEFAULT: ("rollout", "services.rollout ", 1),
    "the newest process of the worker": ("rollout", "services.rollout ", -1),
    "the worker": ("rollout", "services.rollout ", None),
    "the scheduler": ("rollout", "services.scheduler ", None),
    "a rank of the trainer": ("trainer", "services.trainer ", -1),
    "the env host": ("rollout", "earl.env.host ", None),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("victim", "moments", "ranks"),
    [
        pytest.param(DEFAULT, MOMENTS[1:2], 1, id=f"{DEFAULT}, once"),
        *(pytest.param(name, MOMENTS, 2, id=name, marks=pytest.mark.slow) for name in VICTIMS),
    ],
)
def test_the_fleet_keeps_one_parallelism_and_trains_on(
    launched: Launched, victim: str, moments: Sequence[float], ranks: int
) -> None:
    """ranks: of the trainer; a switch of rollout does not touch them."""
    stage, part, child = VICTIMS[victim]
    launched.start(
        scheduler__steps="99999",
        scheduler__profile_s="0",
        rollout__engines="2",
        trainer__ranks=str(ranks),
        evaluation__episodes="0",
        stack__restarts="99",
        switch__retry_s="0",
    )
    launched.until(r"train [1-9]\d*/")
    fleet = Fleet(launched)
    left_alone = fleet.settled(stage, fleet.ask(stage, 2)).last
    assert left_alone is not None and not left_alone.rolled_back, left_alone
    assert 0 < left_alone.seconds < SETTLE_S

    for moment in moments:
        # A step may have been trained, and the stage have settled, without what was killed last.
        fleet.process(part)
        before = fleet.stage(stage).running
        # What it has not: after a switch that was rolled back there would be none to kill something in.
        wanted, tp = ("dp2", 1) if before == "tp2" else ("tp2", 2)
        epoch = fleet.ask(stage, tp)
        time.sleep(moment * left_alone.seconds)
        fleet.kill(part, child)
        state = fleet.settled(stage, epoch)
        assert state.last is not None
        assert state.running == (before if state.last.rolled_back else wanted), state
    # What was rolled back can still be had, once nothing is killed any more and what was is back.
    for tp, wanted in ((1, "dp2"), (2, "tp2")):
        ends = time.monotonic() + SETTLE_S
        while fleet.stage(stage).running != wanted:
            state = fleet.settled(stage, fleet.ask(stage, tp))
            assert state.last is not None and time.monotonic() < ends, state
            assert state.running == wanted or state.last.rolled_back, state

    assert launched.process is not None
    launched.process.send_signal(signal.SIGINT)
    code, figures = launched.finish()
    assert code == 130, launched.said
    assert_ledger_adds_up(figures)
    metrics = [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").open()]
    steps = [line["step"] for line in metrics if line["phase"] == "train"]
    # A rank that dies takes its group back to a checkpoint: those steps are trained anew, nothing else is.
    again = len(steps) - len(set(steps))
    assert again == 0 or stage == "trainer"
    kept = {(line["phase"], line["step"]): line["sequences"] for line in metrics}
    assert figures["trained"] == sum(kept.values())
    launched.assert_nothing_left()
