"""The gateway's rules with a clock that the test moves: no network, no waiting."""

import pytest

from earl.errors import EarlError
from earl.v1 import common_pb2, env_pb2
from services.env_gateway.state.clients import KEPT_ENDED
from services.env_gateway.state.faults import MOST_CHARACTERS
from tests.support.gateway_world import INTERVAL_S, Box, World

OK = common_pb2.ENDING_OK


@pytest.fixture
def world():
    return World()


def test_an_episode(world):
    host = world.host()
    assert host.outbox.take("welcome")[0].lease_s == 5.0
    world.open(7, task_json='{"a": 1}', seed=9, reset_s=3)
    (reset,) = host.outbox.take("reset")
    assert (reset.environment, reset.task_json, reset.seed, reset.deadline_s) == ("game", '{"a": 1}', 9, 3)
    world.now += 0.5
    world.answer(host, reset.session, 0, observation=env_pb2.Observation(text="go"))
    (first,) = world.results()
    assert (first.session, first.observation.text, first.host_s) == (7, "go", 0.5)
    world.step(7, 1, "left")
    (step,) = host.outbox.take("step")
    assert (step.session, step.seq, step.action.text, step.deadline_s) == (reset.session, 1, "left", 30)
    world.answer(host, reset.session, 1, reward=1.0, done=True, ending=OK)
    (last,) = world.results()
    assert (last.session, last.reward, last.done, last.ending) == (7, 1.0, True, OK)
    assert host.outbox.take("close")[0].session == reset.session
    assert not world.gateway.sessions and host.free == 2
    assert not world.gateway.refused


def test_repeated_steps_get_the_same_result(world):
    host = world.host()
    session = world.started(host)
    world.step(1, 1)
    world.step(1, 1)
    assert len(host.outbox.take("step")) == 1
    world.answer(host, session, 1, reward=0.25)
    world.step(1, 1)
    first, again = world.results()
    assert first == again and first.reward == 0.25
    world.step(1, 2)
    world.answer(host, session, 2, reward=0.5, done=True, ending=OK)
    world.step(1, 2)
    assert [r.reward for r in world.results()] == [0.5, 0.5]
    world.close(1)
    world.step(1, 2)
    assert "not open" in world.results()[0].message


@pytest.mark.parametrize("seq", [0, 2, 99])
def test_a_step_out_of_order_changes_nothing(world, seq):
    host = world.host()
    session = world.started(host)
    world.step(1, seq)
    (refusal,) = world.results()
    assert not refusal.done and refusal.message.startswith("EnvProtocolError: step")
    assert world.gateway.refused["wrong_step"] == 1
    world.step(1, 1)
    world.answer(host, session, 1)
    assert world.results()[0].message == ""


def test_results_that_are_refused(world):
    host, other = world.host("h"), world.host("other", environments=("game", "chess"))
    session = world.started(host)
    owner = world.gateway.sessions[session].host
    stranger = other if owner is host else host
    world.step(1, 1)
    world.answer(stranger, session, 1, reward=9.0)
    world.answer(owner, session, 2, reward=9.0)
    world.answer(owner, session, 0, reward=9.0)
    world.answer(owner, session + 1000, 1, reward=9.0)
    assert world.results() == []
    assert dict(world.gateway.refused) == {"foreign_session": 1, "wrong_seq": 1, "late_result": 2}
    world.answer(owner, session, 1, reward=0.5)
    assert [r.reward for r in world.results()] == [0.5]


def test_a_nan_reward_ends_the_session_as_env_error(world):
    host = world.host()
    session = world.started(host)
    world.step(1, 1)
    world.answer(host, session, 1, reward=float("nan"))
    (failed,) = world.results()
    assert failed.done and failed.ending == common_pb2.ENDING_ENV_ERROR and failed.reward == 0
    assert failed.message == "EnvProtocolError: reward nan is not finite"
    assert world.gateway.refused["bad_result"] == 1


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"step_s": float("nan")}, "step_s"),
        ({"task_json": "[]"}, "not a JSON object"),
        ({"task_json": "{"}, "Expecting"),
        ({"task_json": '{"a": "' + "x" * 2000 + '"}'}, "larger than 1024"),
    ],
)
def test_opens_that_are_refused(fields, text):
    world = World(max_text_bytes=1024)
    world.host()
    world.open(1, **fields)
    (refusal,) = world.results()
    assert refusal.done and refusal.message.startswith("EnvProtocolError") and text in refusal.message
    assert not world.gateway.sessions


def test_an_open_number_cannot_be_opened_again(world):
    world.host()
    world.open(1)
    world.open(1)
    assert "open already" in world.results()[0].message
    assert len(world.gateway.sessions) == 1


def test_an_oversize_action_is_refused_and_the_session_lives():
    world = World(max_text_bytes=1024)
    host = world.host()
    world.started(host)
    world.step(1, 1, "x" * 2000)
    assert "larger than 1024" in world.results()[0].message
    world.step(1, 1, "x")
    assert len(host.outbox.take("step")) == 1


def test_sessions_wait_for_room(world):
    host = world.host(capacity=1)
    world.open(1)
    world.open(2, queue_s=3)
    world.open(3, queue_s=30)
    (reset,) = host.outbox.take("reset")
    world.pass_time(3.2, [host])
    (timeout,) = world.results()
    assert timeout.session == 2 and timeout.ending == common_pb2.ENDING_TIMEOUT
    assert timeout.message == "DeadlineExceeded: game: no host had free capacity within 3 s"
    world.answer(host, reset.session, 0, done=True, ending=OK)
    assert len(host.outbox.take("reset")) == 1
    assert world.gateway.sessions[next(iter(host.sessions))].number == 3


def test_more_capacity_by_credit(world):
    host = world.host(capacity=0)
    world.open(1)
    assert host.outbox.take("reset") == []
    world.gateway.handle_host(host, 1, env_pb2.HostMessage(credit=env_pb2.Credit(capacity=1)))
    assert len(host.outbox.take("reset")) == 1


def test_an_unknown_environment_fails_within_the_lease(world):
    host = world.host()
    world.open(1, "gmae")
    world.pass_time(5.2, [host])
    (failed,) = world.results()
    assert failed.message == "UnknownEnvironment: no host serves 'gmae'"
    assert failed.ending == common_pb2.ENDING_INFRA_ERROR


def test_a_host_that_comes_late_is_waited_for(world):
    world.open(1)
    world.pass_time(4)
    host = world.host()
    assert len(host.outbox.take("reset")) == 1


def test_a_slow_step_times_out_and_is_cancelled(world):
    host = world.host()
    session = world.started(host, step_s=2)
    world.step(1, 1)
    world.pass_time(1.5, [host])
    progress = env_pb2.Progress(session=session, seq=1, message="half")
    world.gateway.handle_host(host, 1, env_pb2.HostMessage(progress=progress))
    assert world.client.outbox.take("progress")[0].session == 1
    world.pass_time(1.5, [host])
    assert world.results() == []
    world.pass_time(0.6, [host])
    (failed,) = world.results()
    assert failed.ending == common_pb2.ENDING_TIMEOUT
    assert host.outbox.take("cancel")[0].session == session
    world.answer(host, session, 1, reward=1.0)
    assert world.results() == [] and world.gateway.refused["late_result"] == 1


def test_a_silent_host_is_gone_within_its_lease(world):
    host = world.host()
    world.started(host)
    world.step(1, 1)
    world.pass_time(4.9)
    assert world.results() == []
    assert len(host.outbox.take("ping")) >= 3
    world.pass_time(0.3)
    (failed,) = world.results()
    assert failed.ending == common_pb2.ENDING_INFRA_ERROR and failed.reward == 0
    assert failed.message == "EnvHostLost: host h sent nothing for 5 s"
    assert not world.gateway.pool.hosts and host.outbox.closed


def test_the_gateways_own_stall_is_not_the_hosts_silence(world):
    host = world.host()
    world.started(host, step_s=600)
    world.now += 60
    world.gateway.sweep(INTERVAL_S)
    assert world.results() == [] and world.gateway.pool.hosts
    assert host.outbox.take("ping")


def test_reconnect_keeps_sessions_and_repeats_what_was_in_flight(world):
    host = world.host(instance=99)
    session = world.started(host)
    world.step(1, 1)
    old = host.outbox
    world.gateway.detach(host, 1)
    world.open(2)
    assert old.take("reset") == []
    again = world.host(instance=99, epoch=2)
    assert again is host and old.closed
    assert list(host.outbox.take("welcome")[0].sessions) == [session]
    assert [s.seq for s in host.outbox.take("step")] == [1]
    assert len(host.outbox.take("reset")) == 1
    with pytest.raises(EarlError, match="fenced"):
        world.gateway.handle_host(host, 1, env_pb2.HostMessage(pong=env_pb2.Pong()))
    world.gateway.detach(host, 1)
    world.answer(host, session, 1, reward=1.0)
    assert [r.reward for r in world.results()] == [1.0]


def test_a_restarted_host_ends_its_former_sessions(world):
    host = world.host("h")
    world.started(host)
    world.step(1, 1)
    world.gateway.detach(host, 1)
    assert world.results() == []
    world.host("h")
    assert world.results()[0].message == "EnvHostLost: host h was started again"


def test_a_restarted_host_is_welcomed_before_it_gets_the_sessions_of_the_former(world):
    host = world.host("h")
    world.open(1)
    world.gateway.detach(host, 1)
    again = world.host("h")
    assert [message.WhichOneof("message") for message in again.outbox] == ["welcome", "reset"]


def test_faults_in_a_row_put_a_host_in_quarantine():
    world = World(quarantine_faults=2, quarantine_s=10, lease_s=60)
    bad, _good = world.host("bad", capacity=9), world.host("good", capacity=1)
    for number in (1, 2):
        session = world.started(bad, number)
        world.step(number, 1)
        world.answer(bad, session, 1, done=True, ending=common_pb2.ENDING_ENV_ERROR, message="boom")
    assert world.quarantined == [("game", "bad", "boom")]
    world.open(3)
    world.open(4)
    assert bad.outbox.take("reset") == []
    world.pass_time(10.2)
    assert len(bad.outbox.take("reset")) == 1


def test_who_waits_for_a_host_in_quarantine_is_told_so_and_for_how_long():
    world = World(quarantine_faults=1, quarantine_s=30, lease_s=60)
    bad = world.host("bad")
    session = world.started(bad, 1)
    world.step(1, 1)
    world.answer(bad, session, 1, done=True, ending=common_pb2.ENDING_ENV_ERROR, message="reward inf")
    world.results()
    world.open(2, queue_s=3)
    world.pass_time(3.2, [bad])
    (failed,) = world.results()
    assert failed.ending == common_pb2.ENDING_INFRA_ERROR
    assert failed.message.startswith(
        "EnvHostLost: game: no host had free capacity within 3 s; host bad is in "
    )
    assert failed.message.endswith("s more: reward inf")


def test_a_host_that_was_started_again_is_tried_with_one_session_and_then_with_all():
    world = World(quarantine_faults=1, quarantine_s=300, lease_s=60)
    bad = world.host("bad", capacity=4)
    session = world.started(bad, 1)
    world.step(1, 1)
    world.answer(bad, session, 1, done=True, ending=common_pb2.ENDING_ENV_ERROR, message="boom")
    world.open(2)
    assert bad.outbox.take("reset") == []
    world.gateway.detach(bad, 1)
    mended = world.host("bad", capacity=4)
    for number in (3, 4):
        world.open(number)
    [tried] = mended.outbox.take("reset")
    world.answer(mended, tried.session, 0, observation={"text": "o"})
    world.step(2, 1)
    world.answer(mended, tried.session, 1, done=True, ending=common_pb2.ENDING_OK)
    assert len(mended.outbox.take("reset")) == 2


def test_a_host_is_listed_with_its_quarantines_and_those_that_are_over():
    world = World(quarantine_faults=1, quarantine_s=10, lease_s=60)
    bad = world.host("bad", environments=("game", "other"))
    long = "boom " * 100_000
    session = world.started(bad, 1)
    world.step(1, 1)
    world.answer(bad, session, 1, done=True, ending=common_pb2.ENDING_ENV_ERROR, message=long)
    [listed] = world.gateway.hosts().hosts
    [quarantine] = listed.quarantines
    assert (quarantine.environment, quarantine.left_s) == ("game", 10.0) and not listed.on_probation
    # A host chooses its text: of each the beginning is kept, whatever its length.
    assert quarantine.reason == long[:MOST_CHARACTERS] == world.quarantined[0][2]
    world.pass_time(10.2, [bad])
    [listed] = world.gateway.hosts().hosts
    assert not listed.quarantines and list(listed.on_probation) == ["game"]
    session = world.started(bad, 2)
    world.step(2, 1)
    world.answer(bad, session, 1, done=True, ending=OK)
    [listed] = world.gateway.hosts().hosts
    assert not listed.quarantines and not listed.on_probation


def test_a_host_that_is_as_bad_when_it_was_started_again_is_held_back_for_longer():
    world = World(quarantine_faults=1, quarantine_s=10, lease_s=600)
    for seconds in (10, 20):
        bad = world.host("bad", capacity=4)
        world.open(seconds)
        [tried] = bad.outbox.take("reset")
        world.answer(bad, tried.session, 0, done=True, ending=common_pb2.ENDING_ENV_ERROR, message="boom")
        [entry] = world.gateway.listing().entries
        assert list(entry.quarantines) == [f"host bad is in quarantine for {seconds} s more: boom"]
        world.gateway.detach(bad, 1)


def test_the_commonest_and_the_last_fault_are_listed_by_environment_and_host():
    world = World(lease_s=600)
    hosts = {name: world.host(name, capacity=1) for name in ("a", "b")}
    for number, (name, message) in enumerate([("a", "no 1"), ("b", "odd"), ("a", "no 22")], 1):
        host = hosts[name]
        other = hosts["b" if name == "a" else "a"]
        world.open(100 + number)  # takes the room of one of the two
        world.open(200 + number)
        for placed in (host, other):
            for reset in placed.outbox.take("reset"):
                failed = {"done": True, "ending": common_pb2.ENDING_ENV_ERROR, "message": message}
                well = {"done": True, "ending": common_pb2.ENDING_OK}
                world.answer(placed, reset.session, 0, **(failed if placed is host else well))
    [entry] = world.gateway.listing().entries
    assert (entry.faults.count, entry.faults.last) == (3, "no 22")
    assert (entry.faults.commonest, entry.faults.commonest_count) == ("no 22", 2)
    by_host = {host.host: host.fault_texts for host in world.gateway.hosts().hosts}
    assert (by_host["a"].count, by_host["a"].last, by_host["b"].last) == (2, "no 22", "odd")


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"schema_hash": ""}, "empty schema_hash"),
        ({"tools_json": "{nope"}, "its tools_json is not JSON"),
        ({"tools_json": '{"name": "look"}'}, "its tools_json is no list"),
        ({"tools_json": "[" * 100_000}, "its tools_json is not JSON: .*; correct this environment"),
        ({"min_reward": -1.0}, "one bound of its reward only; declare both or none"),
        (
            {"min_reward": -1.0, "max_reward": 2.0},
            r"in \[-1, 2\], host 'h' serves it .* in \[-1, 1\]",
        ),
        ({}, "rewards without bounds, host 'h'"),
    ],
)
def test_a_host_that_contradicts_another_or_itself_is_refused(world, changed, refusal):
    def attach(name, **fields):
        info = env_pb2.EnvironmentInfo(**{"name": "game", "schema_hash": "s", **fields})
        hello = env_pb2.Hello(protocol=1, host=name, epoch=1, capacity=1, environments=[info])
        hello.instance = len(name)
        return world.gateway.attach(hello, Box())

    attach("h", min_reward=-1.0, max_reward=1.0)
    with pytest.raises(EarlError, match=refusal):
        attach("other", **changed)
    assert [host.name for host in world.gateway.pool.hosts.values()] == ["h"]


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", "x" * 257, ""])
def test_names_of_hosts_that_are_refused(world, name):
    with pytest.raises(EarlError) as caught:
        world.host(name=name)
    assert str(caught.value).isprintable()
    assert not world.gateway.pool.hosts


def test_draining(world):
    host = world.host()
    session = world.started(host)
    world.gateway.drain(5.0)
    assert host.outbox.take("drain")[0].grace_s == 5.0
    world.open(2)
    assert world.results()[0].message == "EnvHostLost: the gateway is stopping"
    world.step(1, 1)
    world.answer(host, session, 1, done=True, ending=OK)
    assert world.results()[0].done


def test_a_client_that_leaves_takes_its_sessions_along(world):
    host = world.host(capacity=1)
    session = world.started(host)
    world.open(2)
    world.gateway.client_left(world.client)
    assert not world.gateway.sessions and host.free == 1
    assert host.outbox.take("close")[0].session == session
    assert host.outbox.take("reset") == []


def test_cancel_ends_the_session(world):
    host = world.host()
    world.started(host)
    world.step(1, 1)
    cancel = env_pb2.Cancel(session=1, reason="enough")
    world.gateway.handle_client(world.client, env_pb2.ClientMessage(cancel=cancel))
    assert world.results()[0].ending == common_pb2.ENDING_TIMEOUT
    assert host.outbox.take("cancel")


def test_ended_sessions_are_forgotten_in_the_end(world):
    host = world.host()
    for number in range(KEPT_ENDED + 50):
        world.open(number)
        (reset,) = host.outbox.take("reset")
        world.answer(host, reset.session, 0, done=True, ending=OK)
    assert list(world.client.sessions) == list(range(50, KEPT_ENDED + 50))
