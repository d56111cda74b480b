"""The gateway's pure parts: sessions, validation of results, placement, quarantine."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.env.base import Ending
from earl.errors import DuplicateEnvironment, EnvProtocolError
from earl.obs.histogram import Histogram
from earl.v1 import common_pb2, env_pb2
from services.env_gateway import results
from services.env_gateway.state import sessions as sm
from services.env_gateway.state.counts import WAITS_S
from services.env_gateway.state.faults import FaultTexts
from services.env_gateway.state.pool import HostState, Pool, ServedEnvironment
from services.env_gateway.state.quarantine import MAX_FACTOR, Quarantine
from services.env_gateway.state.sessions import Arrival, GatewaySession, StepVerdict

LIMITS = {"queue_s": 10.0, "reset_s": 5.0, "step_s": 2.0, "episode_s": 60.0}


def make_session(environment="game", session_id=1, now=0.0):
    return GatewaySession(session_id, None, 1, environment, dict(LIMITS), now)


# --- sessions --------------------------------------------------------------------------------


def test_endings_have_the_wire_numbers():
    assert {e.name: e.value for e in Ending if e} == {
        name.removeprefix("ENDING_"): number for name, number in common_pb2.Ending.items() if number
    }
    assert tuple(e for e in Ending if e) == (
        results.OK,
        results.TRUNCATED,
        results.ENV_ERROR,
        results.INFRA_ERROR,
        results.TIMEOUT,
    )


@given(st.lists(st.tuples(st.sampled_from(["step", "result"]), st.integers(0, 6)), max_size=40))
def test_seq_rules_against_a_model(moves):
    """Whatever arrives in whatever order: each step runs once, in order, and is answered once."""
    session = make_session()
    session.place(None, 0.0)
    ran: list[int] = []
    answered: list[int] = []
    for kind, seq in moves:
        if kind == "step":
            verdict = session.judge_step(seq)
            if verdict is StepVerdict.FORWARD:
                session.start_step(seq, 0.0)
                ran.append(seq)
            elif verdict is StepVerdict.REPEAT:
                assert seq == answered[-1] and seq > 0
            elif verdict is StepVerdict.WAIT:
                assert seq == ran[-1] and seq not in answered
        elif session.judge_result(seq) is Arrival.ANSWER:
            session.answered(False)
            answered.append(seq)
    assert ran == list(range(1, len(ran) + 1))
    assert answered == list(range(len(answered)))
    assert len(ran) - len(answered) in (-1, 0)


def test_each_wait_has_its_own_deadline():
    session = make_session()
    assert session.overdue(9.9) == ""
    assert "no host had free capacity within 10 s" in session.overdue(10.0)
    session.place(None, 4.0)
    assert session.queue_s == 4.0
    assert session.overdue(8.9) == ""
    assert "reset took longer than 5 s" in session.overdue(9.0)
    session.answered(False)
    assert session.overdue(60.0) == ""  # the client may think as long as the episode lasts
    session.start_step("step", 20.0)
    assert "step 1 took longer than 2 s" in session.overdue(22.0)
    assert session.progressed(1, 21.5)
    assert session.overdue(22.0) == ""
    assert not session.progressed(2, 21.5)
    session.answered(False)
    assert "episode took longer than 60 s" in session.overdue(64.0)
    session.end()
    assert session.overdue(1e9) == ""


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e9])
def test_bad_limits_are_named(value):
    with pytest.raises(ValueError, match="step_s"):
        sm.limits_of(env_pb2.Open(step_s=value))
    assert sm.limits_of(env_pb2.Open(step_s=3))["step_s"] == 3
    assert sm.limits_of(env_pb2.Open()) == sm.DEFAULT_LIMITS_S


# --- validation ------------------------------------------------------------------------------

BAD_RESULTS = {
    "reward nan is not finite": env_pb2.Result(reward=math.nan),
    "reward inf is not finite": env_pb2.Result(reward=math.inf),
    "reward 1e+20 is larger than 1e+12": env_pb2.Result(reward=1e20),
    "reward has wire type 2": env_pb2.Result.FromString(b"\x22\x031.0"),
    "text has wire type 0": env_pb2.Result.FromString(b"\x1a\x02\x08\x07"),
    "300 metrics": env_pb2.Result(
        done=True, ending=common_pb2.ENDING_OK, metrics={str(i): 1 for i in range(300)}
    ),
    "metric cost = inf": env_pb2.Result(
        done=True, ending=common_pb2.ENDING_ENV_ERROR, metrics={"cost": math.inf}
    ),
    "larger than 10000": env_pb2.Result(observation=env_pb2.Observation(text="x" * 10_001)),
    "has role 'system'": env_pb2.Result(observation=env_pb2.Observation(text="x", role="system")),
    "legal": env_pb2.Result(observation=env_pb2.Observation(legal_actions=["x" * 6000] * 2)),
    "on a result that is not done": env_pb2.Result(ending=common_pb2.ENDING_OK),
    "unknown ending 0": env_pb2.Result(done=True),
    "unknown ending 77": env_pb2.Result(done=True, ending=77),  # type: ignore[arg-type]
    "metric win = nan": env_pb2.Result(done=True, ending=common_pb2.ENDING_OK, metrics={"win": math.nan}),
    "return 3 is outside": env_pb2.Result(done=True, ending=common_pb2.ENDING_OK, reward=1),
}


@pytest.mark.parametrize("text", BAD_RESULTS)
def test_bad_results(text):
    fault = results.fault_in(BAD_RESULTS[text], 10_000, (-1.0, 1.0), returns=(2.0,))
    assert fault
    assert text == "legal" or text in fault


@given(st.floats(-results.MAX_REWARD, results.MAX_REWARD), st.text(max_size=100), st.booleans())
def test_good_results(reward, text, done):
    ending = common_pb2.ENDING_TRUNCATED if done else common_pb2.ENDING_UNSPECIFIED
    result = env_pb2.Result(
        reward=reward, done=done, ending=ending, observation=env_pb2.Observation(text=text)
    )
    assert results.fault_in(result, 1000, None, (0.0,)) == ""


def test_a_failure_need_not_keep_the_declared_return():
    result = env_pb2.Result(done=True, ending=common_pb2.ENDING_ENV_ERROR)
    assert results.fault_in(result, 1000, (1.0, 2.0), (0.0,)) == ""


def test_fields_of_a_newer_protocol_are_let_through():
    result = env_pb2.Result.FromString(b"\xf8\x7f\x07")  # field 2047, a number
    assert results.fault_in(result, 1000, None, (0.0,)) == ""


# --- waits -----------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=200), st.floats(0.01, 1))
def test_quantiles_of_waits_are_at_most_twice_too_long(seconds, share):
    waits = Histogram(WAITS_S)
    for value in seconds:
        waits.add(value)
    exact = sorted(seconds)[math.ceil(share * len(seconds)) - 1]
    found = waits.quantile(share)
    assert exact <= found * (1 + 1e-9) and found <= max(2 * exact, WAITS_S[0]) * (1 + 1e-9)
    assert (waits.count, waits.longest) == (len(seconds), max(seconds))


def test_no_waits():
    assert Histogram().quantile(0.5) == 0.0


# --- quarantine ------------------------------------------------------------------------------


def test_faults_in_a_row_then_probation():
    quarantine, key = Quarantine(3, 10.0), ("host", "game")
    assert [quarantine.fault(key, 0.0) for _ in range(3)] == [0.0, 0.0, 10.0]
    assert quarantine.held(key, 9.9)
    assert quarantine.fault(key, 5.0) == 0.0  # of a session that was open already
    assert not quarantine.held(key, 10.0)
    assert quarantine.ends(10.0)
    assert not quarantine.ends(10.0)
    assert quarantine.fault(key, 11.0) == 20.0
    quarantine.success(key)
    assert [quarantine.fault(key, 50.0) for _ in range(3)] == [0.0, 0.0, 10.0]
    assert not quarantine.held(("host", "other game"), 50.0)


def test_quarantine_grows_to_a_bound():
    quarantine, key, now, duration = Quarantine(1, 1.0), ("host", "game"), 0.0, 0.0
    for _ in range(20):
        duration = quarantine.fault(key, now)
        now += duration
    assert duration == MAX_FACTOR


# --- pool ------------------------------------------------------------------------------------


def make_host(name, capacity, *environments, instance=None, epoch=1, schema="s"):
    served = {e: ServedEnvironment(e, schema, None) for e in environments}
    return HostState(name, instance or hash(name), epoch, served, capacity, SimpleNamespace(), 0.0)


@pytest.fixture
def pool():
    return Pool(Quarantine(1, 10.0))


def test_the_host_with_most_room_is_chosen(pool):
    small, large, other = make_host("a", 2, "game"), make_host("b", 3, "game"), make_host("c", 9, "chess")
    for host in (small, large, other):
        pool.add(host)
    queued = [make_session(session_id=i) for i in range(7)]
    for session in queued:
        pool.wait(session)
    placed = pool.place_next(0.0)
    assert [session.id for session, _ in placed] == [0, 1, 2, 3, 4]
    assert [host.name for _, host in placed[:2]] == ["b", "a"]
    assert (small.free, large.free, other.free) == (0, 0, 9)
    pool.leave(queued[5])
    large.sessions.clear()
    assert [session.id for session, _ in pool.place_next(0.0)] == [6]


def test_hosts_that_must_not_be_chosen(pool):
    host = make_host("a", 2, "game")
    pool.add(host)
    assert pool.choose("game", 0.0) is host
    host.draining = True
    assert pool.choose("game", 0.0) is None
    host.draining, host.back_by = False, 1.0
    assert pool.choose("game", 0.0) is None
    host.back_by = math.inf
    pool.quarantine.fault(("a", "game"), 0.0)
    assert pool.choose("game", 0.0) is None
    assert pool.choose("game", 10.0) is host


def test_hosts_that_may_be_chosen_and_the_longest_wait_are_listed(pool):
    host = make_host("a", 1, "game")
    pool.add(host)
    for number in (1, 2):
        pool.wait(make_session(session_id=number, now=3.0))
    pool.place_next(3.0)
    # A session that was moved stands first and has waited for less.
    pool.wait(make_session(session_id=3, now=5.0), first=True)
    full = pool.listed(7.0)["game"]
    assert (full.available_hosts, full.queued, full.oldest_wait_s) == (1, 2, 4.0)
    host.draining = True
    assert pool.listed(7.0)["game"].available_hosts == 0
    host.draining, host.back_by = False, 9.0
    assert pool.listed(7.0)["game"].available_hosts == 0
    host.back_by, host.capacity = math.inf, 0
    assert pool.listed(7.0)["game"].available_hosts == 0
    host.capacity = 1
    pool.quarantine.fault(("a", "game"), 7.0)
    assert pool.listed(7.0)["game"].available_hosts == 0
    # On probation it may get one again.
    assert pool.listed(17.0)["game"].available_hosts == 1


def test_one_name_has_one_schema(pool):
    pool.add(make_host("a", 1, "game", instance=1))
    with pytest.raises(DuplicateEnvironment, match=r"schema 't'.*'a' serves it with 's'"):
        pool.check("b", 2, 1, [ServedEnvironment("game", "t", None)])
    assert pool.check("b", 2, 1, [ServedEnvironment("game", "s", None)])
    assert pool.check("a", 1, 2, [ServedEnvironment("game", "t", None)])  # the same host, changed
    with pytest.raises(DuplicateEnvironment, match="names environment 'new' twice"):
        pool.check("b", 2, 1, [ServedEnvironment("new", "s", None), ServedEnvironment("new", "s", None)])
    with pytest.raises(EnvProtocolError, match="serves no environment"):
        pool.check("b", 2, 1, [])


def test_older_epochs_are_fenced(pool):
    pool.add(make_host("a", 1, "game", instance=1, epoch=5))
    for epoch in (4, 5):
        with pytest.raises(EnvProtocolError, match="fenced by epoch 5"):
            pool.check("a", 1, epoch, [ServedEnvironment("game", "s", None)])
    assert pool.check("a", 1, 6, [ServedEnvironment("game", "s", None)])


def test_silence_and_forgiveness(pool):
    host = make_host("a", 1, "game")
    pool.add(host)
    assert pool.expired(5.1, 5.0) == [(host, "sent nothing for 5 s")]
    pool.forgive(3.0)
    assert pool.expired(5.1, 5.0) == []
    host.back_by = 4.0
    assert pool.expired(4.0, 5.0) == [(host, "lost its stream and did not come back")]
    pool.forgive(1.0)
    assert pool.expired(4.0, 5.0) == []


# --- faults ----------------------------------------------------------------------------------


def test_environments_with_new_faults_are_listed_until_they_are_reported():
    faults = FaultTexts()
    for host, environment in (("a", "game"), ("a", "chess"), ("b", "game")):
        faults.note((host, environment), "boom")
    assert list(faults.unreported.items()) == [("game", 2), ("chess", 1)]
    faults.reported("game")
    faults.note(("c", "game"), "boom")
    assert list(faults.unreported.items()) == [("chess", 1), ("game", 1)]
    assert faults.hosts("game") == [("a", "game"), ("b", "game"), ("c", "game")]
    assert faults.summary(faults.hosts("game")).count == 3 and not faults.hosts("go")
