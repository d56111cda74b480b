"""Checks what becomes of the sessions of a host that is lost, and what a listing says. The test moves the
clock."""

import pytest

from earl.errors import EnvProtocolError
from earl.v1 import common_pb2, env_pb2
from tests.support.gateway_world import World

OK, INFRA = common_pb2.ENDING_OK, common_pb2.ENDING_INFRA_ERROR
START = env_pb2.Observation(text="start", legal_actions=["a", "b"])


def opened(world, host, number=1, **fields):
    """A session whose reset is answered: the gateway's id of it."""
    world.open(number, **fields)
    (reset,) = host.outbox.take("reset")
    world.answer(host, reset.session, 0, observation=START)
    world.results()
    return reset.session


@pytest.fixture
def world():
    return World()


def test_a_reset_in_flight_goes_to_another_host(world):
    first = world.host("first", capacity=9)
    second = world.host("second", capacity=8)
    world.open(1, task_json='{"a": 1}', seed=7)
    (reset,) = first.outbox.take("reset")
    world.gateway.detach(first, 1)
    world.pass_time(0.4, [second])
    assert second.outbox.take("reset") == []  # it may still come back
    world.pass_time(0.3, [second])
    (again,) = second.outbox.take("reset")
    assert (again.task_json, again.seed, again.environment) == ('{"a": 1}', 7, "game")
    assert again.session != reset.session  # nothing late can name it
    assert world.client.outbox.take("progress")[0].session == 1
    world.answer(second, reset.session, 0, observation=env_pb2.Observation(text="late"))
    world.answer(second, again.session, 0, observation=START)
    (result,) = world.results()
    assert (result.session, result.observation.text, result.done) == (1, "start", False)
    assert world.gateway.totals["moved"] == world.gateway.refused["late_result"] == 1


def test_a_session_without_a_step_goes_on_where_the_reset_shows_the_same(world):
    first, second = world.host("first", capacity=9), world.host("second", capacity=8)
    opened(world, first)
    world.gateway.detach(first, 1)
    world.pass_time(0.7, [second])
    (again,) = second.outbox.take("reset")
    world.step(1, 1, "left")
    world.step(1, 1, "left")  # repeated while it is held
    assert second.outbox.take("step") == [] and world.results() == []
    world.answer(second, again.session, 0, observation=START)
    (step,) = second.outbox.take("step")
    assert (step.session, step.seq, step.action.text) == (again.session, 1, "left")
    assert world.results() == []  # the client has had the reset's answer
    world.answer(second, again.session, 1, reward=1.0, done=True, ending=OK)
    (last,) = world.results()
    assert (last.seq, last.reward, last.ending) == (1, 1.0, OK)
    assert not world.gateway.sessions and second.free == 8


def test_a_step_that_comes_after_the_repeated_reset(world):
    first, second = world.host("first", capacity=9), world.host("second", capacity=8)
    opened(world, first)
    world.gateway.detach(first, 1)
    world.pass_time(0.7, [second])
    (again,) = second.outbox.take("reset")
    world.answer(second, again.session, 0, observation=START)
    world.step(1, 1)
    assert len(second.outbox.take("step")) == 1
    assert world.client.outbox == []  # it waited for nothing meanwhile


def test_a_reset_that_shows_something_else_ends_the_session(world):
    first, second = world.host("first", capacity=9), world.host("second", capacity=8)
    opened(world, first)
    world.gateway.detach(first, 1)
    world.pass_time(0.7, [second])
    (again,) = second.outbox.take("reset")
    world.step(1, 1)
    world.answer(second, again.session, 0, observation=env_pb2.Observation(text="another start"))
    (failed,) = world.results()
    assert (failed.seq, failed.ending, failed.done) == (1, INFRA, True)
    assert "second does not show the same" in failed.message
    assert second.free == 8 and not world.gateway.sessions


def test_a_session_with_a_step_ends_with_its_host(world):
    first, _second = world.host("first", capacity=9), world.host("second", capacity=8)
    session = opened(world, first)
    world.step(1, 1)
    world.answer(first, session, 1)
    world.results()
    world.gateway.detach(first, 1)
    world.pass_time(0.7)
    (failed,) = world.results()
    assert failed.ending == INFRA and "lost its stream and did not come back" in failed.message
    world.step(1, 2)  # the client had not been waiting: it learns the same now
    (again,) = world.results()
    assert (again.seq, again.ending, again.message) == (2, INFRA, failed.message)


def test_moves_are_bounded():
    world = World(reset_attempts=2)
    hosts = [world.host(f"h{number}", capacity=9 - number) for number in range(3)]
    world.open(1)
    for host in hosts[:2]:
        assert len(host.outbox.take("reset")) == 1
        world.gateway.detach(host, 1)
        world.pass_time(0.7, hosts)
    (failed,) = world.results()
    assert failed.ending == INFRA and "host h1" in failed.message
    assert hosts[2].outbox.take("reset") == []


def test_who_was_there_first_is_placed_first(world):
    host = world.host("first", capacity=1)
    world.open(1)
    world.open(2)
    world.gateway.detach(host, 1)
    world.pass_time(0.7)
    second = world.host("second", capacity=1)
    assert [reset.environment for reset in second.outbox.take("reset")] == ["game"]
    (held,) = second.sessions.values()
    assert held.number == 1


def test_a_moved_session_that_finds_no_host_times_out(world):
    host = world.host("first", capacity=1)
    world.open(1, queue_s=3)
    world.gateway.detach(host, 1)
    other = world.host("other", environments=("chess",))
    world.pass_time(3, [other])
    assert world.results() == []
    world.pass_time(1, [other])
    (failed,) = world.results()
    assert failed.done and "no host serves 'game'" in failed.message


def test_a_close_takes_a_moved_session_out_of_the_queue(world):
    host = world.host("first", capacity=1)
    world.open(1)
    world.gateway.detach(host, 1)
    world.pass_time(0.7)
    assert world.gateway.pool.waiting("game") == 1
    world.close(1)
    assert world.gateway.pool.waiting("game") == 0 and not world.gateway.sessions


def test_a_host_that_said_drain_has_left_when_its_stream_ends(world):
    host = world.host()
    world.started(host)
    world.step(1, 1)
    world.gateway.handle_host(host, 1, env_pb2.HostMessage(drain=env_pb2.Drain()))
    world.gateway.detach(host, 1)
    assert world.results()[0].message == "EnvHostLost: host h left"


def test_a_stream_that_cannot_be_understood_costs_its_host_alone():
    world = World(quarantine_faults=1)
    bad, good = world.host("bad", capacity=9), world.host("good", capacity=8)
    world.started(bad)
    world.step(1, 1)
    world.gateway.broke(bad, 1, EnvProtocolError("a frame cannot be decoded: bad UTF-8"))
    (failed,) = world.results()
    assert failed.ending == INFRA and "cannot be decoded" in failed.message
    assert world.gateway.refused["broken_stream"] == 1
    assert list(world.gateway.pool.hosts.values()) == [good]
    again = world.host("bad", capacity=9)
    world.open(2)
    assert again.outbox.take("reset") == [] and len(good.outbox.take("reset")) == 1


@pytest.mark.parametrize(
    "info",
    [
        {"name": "game", "min_reward": float("nan"), "max_reward": 1.0},
        {"name": "game", "min_reward": 2.0, "max_reward": 1.0},
        {"name": "game", "min_reward": 0.0, "max_reward": float("inf")},
        {"name": "two\nlines"},
    ],
)
def test_environments_that_are_refused(world, info):
    hello = env_pb2.Hello(protocol=1, host="h", instance=1, epoch=1, capacity=1)
    hello.environments.add(**info)
    with pytest.raises(EnvProtocolError, match="host 'h' serves"):
        world.gateway.attach(hello, [])
    assert not world.gateway.pool.hosts


def test_a_listing_says_what_waits_and_what_is_held_back():
    world = World(quarantine_faults=1)
    world.host("good", capacity=1)
    bad = world.host("bad", capacity=2, environments=("game", "chess"))
    session = world.started(bad)
    world.step(1, 1)
    world.answer(bad, session, 1, done=True, ending=common_pb2.ENDING_ENV_ERROR)
    for number in (2, 3, 4):
        world.open(number)
    world.open(5, "nowhere")
    found = {entry.environment.name: entry for entry in world.gateway.listing().entries}
    game, chess, nowhere = found["game"], found["chess"], found["nowhere"]
    assert (game.hosts, game.capacity, game.open_sessions, game.queued, game.quarantined) == (2, 3, 1, 2, 1)
    assert (chess.hosts, chess.queued, chess.quarantined) == (1, 0, 0)
    assert (nowhere.hosts, nowhere.queued) == (0, 1)


def test_waits_in_the_queue_are_counted(world):
    host = world.host(capacity=1)
    world.open(1)
    world.open(2)
    (reset,) = host.outbox.take("reset")
    world.pass_time(3, [host])
    world.answer(host, reset.session, 0, done=True, ending=OK)
    waits = world.gateway.counts.fields()["queue_wait_s"]
    assert (waits["count"], waits["p50"]) == (2, 0.001)
    assert waits["longest"] == waits["p99"] == pytest.approx(3)
    world.results()
    (second,) = host.outbox.take("reset")
    world.answer(host, second.session, 0)
    assert world.results()[0].queue_s == pytest.approx(3)


def test_a_number_that_ended_may_be_opened_again(world):
    host = world.host()
    for _ in range(2):
        session = world.started(host)
        world.step(1, 1)
        world.answer(host, session, 1, done=True, ending=OK)
        assert world.results()[0].ending == OK
    world.open(1)
    world.step(1, 1)
    assert len(world.gateway.sessions) == 1 and "open already" not in str(world.results())
