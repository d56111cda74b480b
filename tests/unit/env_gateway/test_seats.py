"""The gateway's rules for sessions of several seats."""

import math

import pytest

from earl.errors import DuplicateEnvironment, EnvProtocolError
from earl.v1 import common_pb2, env_pb2
from tests.support.gateway_world import Box, World

OK, TRUNCATED = common_pb2.ENDING_OK, common_pb2.ENDING_TRUNCATED


def hello(name="h", instance=1, **fields):
    info = env_pb2.EnvironmentInfo(name="game", schema_hash="s", **fields)
    return env_pb2.Hello(protocol=1, host=name, instance=instance, epoch=1, capacity=2, environments=[info])


@pytest.fixture
def world():
    return World()


@pytest.fixture
def host(world):
    return world.gateway.attach(hello(seats=2, min_reward=-1, max_reward=1), Box())


def seat(number):
    return env_pb2.Observation(text="turn", seat=number)


def metrics(**figures):
    return env_pb2.SeatMetrics(metrics=figures)


def test_an_episode_of_two_seats(world, host):
    world.open(7, seats=2)
    (reset,) = host.outbox.take("reset")
    assert reset.seats == 2
    world.answer(host, reset.session, 0, observation=seat(1))
    assert world.results()[0].observation.seat == 1
    world.step(7, 1)
    world.answer(host, reset.session, 1, observation=seat(0), seat_rewards=[0, 0.5])
    (first,) = world.results()
    assert (first.observation.seat, list(first.seat_rewards)) == (0, [0, 0.5])
    world.step(7, 2)
    last = {"seat_rewards": [1, 0.5], "seat_metrics": [metrics(win=1), metrics(win=0)]}
    world.answer(host, reset.session, 2, done=True, ending=OK, **last)
    (over,) = world.results()
    assert (over.ending, [dict(m.metrics) for m in over.seat_metrics]) == (OK, [{"win": 1}, {"win": 0}])
    assert not world.gateway.refused and not world.gateway.sessions


@pytest.mark.parametrize("seats", [0, 1])
def test_one_seat_is_the_session_of_before(world, host, seats):
    session = world.started(host, seats=seats)
    world.step(1, 1)
    world.answer(host, session, 1, reward=1.0, done=True, ending=OK)
    (last,) = world.results()
    assert (last.ending, last.reward, list(last.seat_rewards)) == (OK, 1.0, [])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "0 seat_rewards, where 2 seats are played: send 2"),
        ({"reward": 1.0}, "0 seat_rewards"),
        ({"seat_rewards": [1.0]}, "1 seat_rewards, where 2 seats are played: send 2"),
        ({"seat_rewards": [1.0, 0.0, 0.0]}, "3 seat_rewards"),
        ({"seat_rewards": [0.0, math.nan]}, "reward nan is not finite"),
        ({"seat_rewards": [math.inf, 0.0]}, "reward inf is not finite"),
        ({"seat_rewards": [0.0, 1e13]}, "larger than 1e+12"),
        ({"seat_rewards": [0.0, 0.0], "observation": seat(2)}, "observation is for seat 2, where 2 seats"),
        ({"seat_rewards": [0.0, 1.5], "done": True, "ending": OK}, "return 1.5 of seat 1 is outside"),
        ({"seat_rewards": [-1.5, 0.0], "done": True, "ending": TRUNCATED}, "return -1.5 of seat 0"),
        (
            {"seat_rewards": [0, 0], "done": True, "ending": OK, "seat_metrics": [metrics()]},
            "1 seat_metrics, where 2 seats are played",
        ),
        (
            {
                "seat_rewards": [0, 0],
                "done": True,
                "ending": OK,
                "seat_metrics": [metrics(), metrics(x=math.nan)],
            },
            "metric x = nan is not finite",
        ),
    ],
)
def test_faults_of_a_host(world, host, fields, text):
    session = world.started(host, seats=2)
    world.step(1, 1)
    world.answer(host, session, 1, **fields)
    (failed,) = world.results()
    assert failed.ending == common_pb2.ENDING_ENV_ERROR and text in failed.message
    assert not failed.seat_rewards and world.gateway.refused["bad_result"] == 1


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"seat_rewards": [1.0]}, "1 seat_rewards, where one seat is played: send none"),
        ({"seat_rewards": [1.0, 0.0]}, "2 seat_rewards"),
        ({"observation": seat(1)}, "observation is for seat 1, where one seat is played"),
        ({"done": True, "ending": OK, "seat_metrics": [metrics()]}, "1 seat_metrics, where one seat"),
    ],
)
def test_faults_where_one_seat_is_played(world, host, fields, text):
    session = world.started(host)
    world.step(1, 1)
    world.answer(host, session, 1, **fields)
    assert text in world.results()[0].message


def test_each_seats_bound_is_of_the_sum(world, host):
    session = world.started(host, seats=2)
    for seq in (1, 2):
        world.step(1, seq)
        world.answer(host, session, seq, seat_rewards=[-0.5, 0.5])
    world.step(1, 3)
    world.answer(host, session, 3, seat_rewards=[0, 0.5], done=True, ending=OK)
    assert "return 1.5 of seat 1 is outside of the declared [-1, 1]" in world.results()[-1].message


def test_a_failure_has_no_rewards(world, host):
    session = world.started(host, seats=2)
    world.step(1, 1)
    world.answer(host, session, 1, done=True, ending=common_pb2.ENDING_ENV_ERROR, message="a: b")
    assert world.results()[0].message == "a: b" and not world.gateway.refused


@pytest.mark.parametrize(
    ("seats", "text"),
    [(3, "seats 3 of 'game', which offers 2: open it with seats=2 or fewer"), (1 << 31, "which offers 2")],
)
def test_more_seats_than_there_are_are_refused_before_a_host_is_asked(world, host, seats, text):
    world.open(1, seats=seats)
    (refused,) = world.results()
    assert refused.done and refused.message.startswith("EnvProtocolError") and text in refused.message
    assert not host.outbox.take("reset") and not world.gateway.sessions and host.free == 2
    world.started(host, 1)


def test_an_absurd_number_of_seats_is_refused_before_any_host_is_there(world):
    world.open(1, seats=65)
    assert "seats 65: play 1 to 64" in world.results()[0].message


def test_a_host_that_comes_later_is_not_asked_for_seats_that_it_lacks(world):
    for number, seats in ((1, 2), (2, 1), (3, 2), (4, 0)):
        world.open(number, seats=seats)
    host = world.gateway.attach(hello(), Box())
    refused = world.results()
    assert [result.session for result in refused] == [1, 3]
    assert all("which offers 1: open it with seats=1" in result.message for result in refused)
    assert len(host.outbox.take("reset")) == 2 and host.free == 0


def test_hosts_of_one_name_agree_on_its_seats(world, host):
    for instance, fields in enumerate(({}, {"seats": 1}, {"seats": 3}), 2):
        differing = hello("other", instance, min_reward=-1, max_reward=1, **fields)
        with pytest.raises(DuplicateEnvironment, match=r"has seats \d, host 'h' serves it with seats 2"):
            world.gateway.attach(differing, Box())
    world.gateway.attach(hello("other", 9, seats=2, min_reward=-1, max_reward=1), Box())


def test_zero_seats_and_one_seat_are_the_same(world):
    world.gateway.attach(hello("old"), Box())
    world.gateway.attach(hello("new", 2, seats=1), Box())


def test_a_hello_with_too_many_seats(world):
    with pytest.raises(EnvProtocolError, match="65 seats, at most 64"):
        world.gateway.attach(hello(seats=65), Box())


def test_a_moved_session_keeps_its_seats(world, host):
    session = world.started(host, seats=2)
    other = world.gateway.attach(hello("other", 2, seats=2, min_reward=-1, max_reward=1), Box())
    world.gateway.detach(host, host.epoch)
    world.pass_time(30, [other])
    (again,) = other.outbox.take("reset")
    assert again.seats == 2 and again.session != session
