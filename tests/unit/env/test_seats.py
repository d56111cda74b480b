"""Several seats in a host: what an environment is told, and what of its answers may be sent."""

import math

import pytest

from earl.env import Environment, Observation, StepResult
from earl.env.base import schema_hash
from earl.env.codec import answer, info, outcome
from earl.env.runner import SessionRunner
from earl.env.serve import as_mapping
from earl.errors import EnvProtocolError
from earl.v1 import common_pb2, env_pb2
from tests.support.seats import Heap
from tests.unit.env.test_sdk import Echo, Sent, step


@pytest.fixture
async def sent():
    return Sent()


@pytest.fixture(params=["thread", "process"])
async def runner(sent, request):
    runner = SessionRunner(
        as_mapping([Heap, Echo]), 3, sent.queue.put_nowait, isolation=request.param, hold_s=0
    )
    yield runner
    runner.close()


def reset(session, environment="test/heap", **fields):
    return env_pb2.Reset(session=session, environment=environment, seed=5, task_json="{}", **fields)


async def test_each_seat_acts_in_turn_and_is_rewarded(runner, sent):
    runner.reset(reset(1, seats=2))
    shown, seats = (await sent.next("result")).observation, []
    while True:
        seats.append(shown.seat)
        runner.step(step(1, len(seats), shown.legal_actions[0]))
        result = await sent.next("result")
        assert not result.message and result.reward == 0 and len(result.seat_rewards) == 2
        shown = result.observation
        if result.done:
            break
        assert list(result.seat_rewards) == [0, 0] and not result.seat_metrics
    assert seats == [turn % 2 for turn in range(len(seats))]
    assert shown.seat == seats[-1]
    expected = [1.0 if seat == seats[-1] else -1.0 for seat in (0, 1)]
    assert list(result.seat_rewards) == expected
    assert [seat.metrics["win"] for seat in result.seat_metrics] == [float(r > 0) for r in expected]


@pytest.mark.parametrize("fields", [{}, {"seats": 0}, {"seats": 1}])
async def test_one_seat_is_played_as_before(runner, sent, fields):
    runner.reset(reset(1, **fields))
    await sent.next("result")
    runner.step(step(1, 1, "nonsense"))
    result = await sent.next("result")
    assert (result.reward, list(result.seat_rewards), len(result.seat_metrics)) == (-1, [], 0)
    assert result.metrics["illegal"] == 1


@pytest.mark.parametrize(("environment", "offered"), [("test/heap", 2), ("test/echo", 1)])
async def test_more_seats_than_there_are(runner, sent, environment, offered):
    runner.reset(reset(1, environment, seats=3))
    refused = await sent.next("result")
    assert refused.ending == common_pb2.ENDING_INFRA_ERROR
    text = f"EnvProtocolError: {environment} has {offered} seats for a client, 3 were asked for"
    assert refused.message == text


def test_the_declaration_of_seats():
    assert info("test/heap", Heap).seats == 2
    assert not info("test/echo", Echo).seats
    assert schema_hash(Echo) == "3d8d677ab94bf2dd"
    assert Environment.seats == Environment().seats_played == 1


def two(**fields):
    return StepResult(Observation("a"), **fields)


@pytest.mark.parametrize(
    ("result", "seats", "text"),
    [
        (two(), 2, r"reward 0.0 and rewards \(\) of step 1, where 2 seats are played"),
        (two(rewards=(1.0,)), 2, r"rewards \(1.0,\)"),
        (two(rewards=(1.0, 0.0, 0.0)), 2, "give `rewards`, 2 numbers"),
        (two(reward=1.0, rewards=(1.0, 0.0)), 2, "and no `reward`"),
        (two(rewards=(1.0, math.nan)), 2, "reward nan of seat 1"),
        (two(rewards=(1.0, "0")), 2, "reward '0' of seat 1"),
        (two(rewards=(1.0,)), 1, "where one seat is played"),
        (two(rewards=(1.0, 0.0)), 1, "give `reward` where seats_played is 1"),
        (two(done=True, seat_metrics=({}, {})), 1, "seat_metrics of 2 seats, where 1 is played"),
        (two(done=True, rewards=(0, 0), seat_metrics=({},)), 2, "seat_metrics of 1 seats, where 2 are"),
        (two(done=True, rewards=(0, 0), seat_metrics=({}, {"m": math.inf})), 2, "seat 1: metric m = inf"),
        (StepResult(Observation("a", seat=2), rewards=(0, 0)), 2, "is for seat 2, where 2 seats are played"),
        (StepResult(Observation("a", seat=-1), rewards=(0, 0)), 2, "seats are 0 to 1"),
        (StepResult(Observation("a", seat=1)), 1, "leave `seat` at 0 where seats_played is 1"),
        (StepResult(Observation("a", seat=0.5), rewards=(0, 0)), 2, "is for seat 0.5"),  # type: ignore[arg-type]
    ],
)
def test_what_may_not_be_sent(result, seats, text):
    with pytest.raises(EnvProtocolError, match=text):
        answer(1, 1, result, seats)


def test_what_is_sent_is_read_again():
    sent = StepResult(
        Observation("a", seat=1),
        truncated=True,
        metrics={"win": 1.0},
        rewards=(0.5, -0.5),
        seat_metrics=({"win": 1.0}, {"win": 0.0}),
    )
    assert outcome(answer(1, 1, sent, 2).result) == sent
    assert outcome(answer(1, 0, Observation("a", seat=1), 2).result) == Observation("a", seat=1)
