"""A whole fleet, each of its processes on a host of its own, whose links are cut while it trains."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.network.drops import dropped, require_firewall
from benchmarks.network.fleet import HostedRun
from benchmarks.network.links import Link
from benchmarks.network.rig import Rig, RigUnavailable, network
from tests.support.needs import lacking
from tests.support.runs import tictactoe

# More steps than are trained while links are cut.
STEPS = 100_000
OUTAGES_S = (1.0, 4.0, 15.0)
PLACES = {"valkey": 0, "scheduler": 1, "gateway": 2, "env-0": 3, "trainer": 4, "rollout-0": 5}
# Every two that talk to each other.
PAIRS = [
    ("scheduler", "valkey"),
    ("trainer", "valkey"),
    ("rollout-0", "valkey"),
    ("trainer", "scheduler"),
    ("rollout-0", "scheduler"),
    ("rollout-0", "gateway"),
    ("env-0", "gateway"),
    ("trainer", "rollout-0"),
]
WAIT_S = 120.0
POLL_S = 0.1


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    try:
        require_firewall()
        with network(len(PLACES), Link(1.0)) as made:
            yield made
    except RigUnavailable as error:
        lacking(str(error))


@pytest.fixture(scope="module")
def fleet(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedRun]:
    directory: Path = tmp_path_factory.mktemp("fleet")
    config = tictactoe(
        directory, scheduler={"steps": STEPS}, warmup={"batches": 0}, evaluation={"at_end": False}
    )
    with HostedRun(rig, config, PLACES) as run:
        run.start()
        trained(run, 2)
        yield run


def trained(run: HostedRun, more: int) -> None:
    """Waits until so many more steps are trained; none of the processes ends meanwhile."""
    begun, ends_s = len(run.steps()), time.monotonic() + WAIT_S
    while len(run.steps()) < begun + more:
        assert not run.ended(), {name: run.processes[name].log.read_text()[-4000:] for name in run.ended()}
        assert time.monotonic() < ends_s, run.directory
        time.sleep(POLL_S)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_lost_link_ends_nobody_and_training_continues(
    rig: Rig, fleet: HostedRun, pair: tuple[str, str]
) -> None:
    for seconds in OUTAGES_S:
        with dropped(fleet.host(pair[0]), fleet.host(pair[1])):
            time.sleep(seconds)  # the case itself: for how long the link is cut
        trained(fleet, 2)
    steps = fleet.steps()
    assert steps == list(range(1, len(steps) + 1)), "a step is missing, or was trained twice"
