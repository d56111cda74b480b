"""Moves of a worker's sequences in a run: when they are decided, and by what."""

from __future__ import annotations

import pytest

from earl.errors import ConfigError
from earl.parallelism import ROLLOUT, Parallelism
from earl.worker_report import LiveSequence, SequenceMove
from services.scheduler.assign.cost import DecodeCost
from services.scheduler.assign.plan import EngineKind
from services.scheduler.assign.rebalance import Rebalancing
from services.scheduler.parallelism.engine_costs import ProfileCosts
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import ProfileTable

# A step costs what its sequences do: half of them elsewhere end in half the time.
CROWDED = DecodeCost(step_s=1e-4, sequence_s=1e-3, context_s=0.0, prompt_s=1e-4)
# A step costs the same, whatever it has.
FLAT = DecodeCost(step_s=1e-2, sequence_s=0.0, context_s=0.0, prompt_s=1e-4)
TWO = Parallelism(dp=2)


def sequences(*engines: int, response: int = 100) -> list[LiveSequence]:
    return [
        LiveSequence(f"{number}/1", number, engine, 500 + response, response)
        for number, engine in enumerate(engines)
    ]


def rebalancing(
    cost: DecodeCost | None = CROWDED, waiting: bool = False, predicted: dict[int, int] | None = None
) -> Rebalancing:
    lengths = predicted or {}

    def kind(parallelism: Parallelism) -> EngineKind | None:
        return EngineKind(cost, 8 * parallelism.tp) if cost is not None else None

    return Rebalancing(kind, lambda ticket: lengths.get(ticket, 2000), lambda: waiting)


def test_an_idle_engine_takes_half_of_a_crowded_ones_sequences():
    moved = rebalancing().moves(TWO, sequences(0, 0, 0, 0))
    assert len(moved) == 2 and {move.engine for move in moved} == {1}
    assert {move.session for move in moved} < {f"{number}/1" for number in range(4)}


def test_those_that_have_least_left_move():
    moved = rebalancing(predicted={0: 4000, 1: 1500, 2: 4000, 3: 1400}).moves(TWO, sequences(0, 0, 0, 0))
    assert {move.session for move in moved} >= {"1/1", "3/1"} and len(moved) < 4


@pytest.mark.parametrize(
    "judge, parallelism, live",
    [
        (rebalancing(waiting=True), TWO, sequences(0, 0, 0, 0)),
        (rebalancing(cost=None), TWO, sequences(0, 0, 0, 0)),
        (rebalancing(cost=FLAT), TWO, sequences(0, 0, 0, 0)),
        (rebalancing(), TWO, sequences(0, 0, 0, 1)),
        (rebalancing(), TWO, []),
        (rebalancing(), Parallelism(), sequences(0, 0)),
        (rebalancing(), TWO, sequences(0, 0, 7, 0)),
        (rebalancing(), Parallelism(dp=1 << 31), sequences(0, 0, 0, 0)),
    ],
    ids=["waiting", "no cost", "no gain", "none idle", "none live", "one engine", "unknown engine", "many"],
)
def test_nothing_moves(judge: Rebalancing, parallelism: Parallelism, live: list[LiveSequence]):
    assert judge.moves(parallelism, live) == []


def test_a_move_names_the_session_and_the_engine():
    live = [LiveSequence("9/2/1", 9, 1, 700, 200), LiveSequence("9/2/3", 9, 1, 700, 200)]
    assert rebalancing().moves(TWO, live) in ([SequenceMove("9/2/1", 0)], [SequenceMove("9/2/3", 0)])


def profile_table() -> ProfileTable:
    rows = [
        ProfileRow(
            stage=ROLLOUT, parallelism=Parallelism(), context_tokens=1024, concurrency=load,
            tokens_per_device_s=load / (0.01 + 0.001 * load),
        )
        for load in (1, 4, 16)
    ]  # fmt: skip
    return ProfileTable(rows, ROLLOUT)


def read_out(costs: ProfileCosts) -> None:
    """Returns when the profile was looked for."""
    costs(TWO)
    assert costs._reading is not None
    costs._reading.exception(timeout=10)


def test_costs_are_known_once_the_profile_is_read():
    costs = ProfileCosts(profile_table)
    read_out(costs)
    cost = costs(TWO)
    assert cost is not None and cost.step_s == pytest.approx(0.01, rel=0.05)
    assert costs(Parallelism(dp=1, tp=4)) is None


def test_without_a_profile_there_is_no_cost():
    def fails() -> None:
        raise ConfigError("the profile is of another model")

    def breaks() -> None:
        raise PermissionError("the cache")

    for read in (fails, lambda: None, breaks):
        costs = ProfileCosts(read)
        read_out(costs)
        assert costs(TWO) is None
