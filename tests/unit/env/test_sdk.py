"""The SDK without a network: serving by name, running sessions, what may be sent, threads, outboxes."""

import asyncio
import math
import threading

import pytest

from earl.env import Environment, Observation, StepResult
from earl.env.base import Ending, schema_hash
from earl.env.codec import Failure, answer, error_of, observation
from earl.env.hosted import Admission, HostedSession
from earl.env.runner import SessionRunner
from earl.env.serve import as_mapping, load
from earl.env.threads import DaemonThreads
from earl.errors import (
    ConfigError,
    DuplicateEnvironment,
    EnvHostLost,
    EnvironmentFailure,
    EnvProtocolError,
    RpcError,
)
from earl.rpc.outbox import FRAME_BYTES, FRAME_MESSAGES, Outbox
from earl.v1 import common_pb2, env_pb2


class Echo(Environment):
    name = "test/echo"
    blocking = False

    def reset(self, seed, task):
        return Observation(f"seed {seed}", ("a", "b"))

    def step(self, action):
        if action == "raise":
            raise ZeroDivisionError("by nothing")
        if action == "long":
            return StepResult("x" * (1 << 21))
        if action == "nan":
            return StepResult("bad", math.nan)
        return StepResult(action, 0.5, done=action == "end", metrics={"n": 1.0})


class Blocking(Environment):
    """Steps wait for the test."""

    name = "test/blocking"
    gate = threading.Event()
    entered = threading.Semaphore(0)
    closed = 0

    def reset(self, seed, task):
        return "ready"

    def step(self, action):
        type(self).entered.release()
        self.report_progress("still here")
        assert type(self).gate.wait(30)
        return StepResult("late", 1.0, done=True)

    def close(self):
        type(self).closed += 1


class Awaiting(Environment):
    name = "test/awaiting"

    async def reset(self, seed, task):
        return "ready"

    async def step(self, action):
        if action == "wait":
            await asyncio.Event().wait()
        return StepResult(action, truncated=True)


# --- what is served --------------------------------------------------------------------------


def test_environments_from_everything_that_serves_them():
    assert as_mapping(Echo) == {"test/echo": Echo}
    assert as_mapping([Echo, Blocking]) == {"test/echo": Echo, "test/blocking": Blocking}
    assert set(as_mapping({"a/b": lambda: Echo()})) == {"a/b"}
    assert set(load("earl.env.adapters.open_spiel:environments")) == {
        "open_spiel/tic_tac_toe",
        "open_spiel/connect_four",
    }
    assert set(load("earl.env.adapters.open_spiel:TicTacToe")) == {"open_spiel/tic_tac_toe"}


def test_an_environment_named_twice():
    twin = type("Twin", (Echo,), {})
    with pytest.raises(DuplicateEnvironment, match="'test/echo' is named twice"):
        as_mapping([Echo, twin])


@pytest.mark.parametrize("bad", [[], 7, Environment, {"no spaces": Echo}, {"x": 3}])
def test_what_cannot_be_served(bad):
    with pytest.raises(ConfigError):
        as_mapping(bad)


@pytest.mark.parametrize("target", ["", "earl.env", "earl.env:nothing", "earl.nowhere:x", ":x"])
def test_targets_that_cannot_be_imported(target):
    with pytest.raises(ConfigError):
        load(target)


def test_schema_hash_follows_the_schema():
    changed = type("Changed", (Echo,), {"action_schema": {"type": "object"}})
    assert schema_hash(Echo) == schema_hash(Blocking) != schema_hash(changed)


# --- what is sent ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("text", "step 1 returned str"),
        (None, "step 1 returned NoneType"),
        (StepResult("a", math.inf), "reward inf"),
        (StepResult("a", "1"), "reward '1'"),  # type: ignore[arg-type]
        (StepResult("a", done=True, metrics={"m": math.nan}), "metric m = nan"),
        (StepResult(7), "step returned int"),  # type: ignore[arg-type]
        (StepResult("\ud800"), "cannot be sent"),
    ],
)
def test_what_may_not_be_sent(outcome, text):
    with pytest.raises(EnvProtocolError, match=text):
        answer(1, 1, outcome)


def test_failures_carry_their_class():
    message = answer(1, 2, Failure(Ending.INFRA_ERROR, "EnvHostLost", "two\nlines")).result
    assert (message.done, message.ending) == (True, common_pb2.ENDING_INFRA_ERROR)
    assert message.message == "EnvHostLost: two lines"
    assert type(error_of(message.message)) is EnvHostLost
    assert type(error_of("whatever: it was")) is EnvironmentFailure


# --- sessions in a host ----------------------------------------------------------------------


def test_admission():
    session = HostedSession(1, "game")
    session.start(0)
    assert session.admit(0) is Admission.WAIT
    session.finish("first", done=False)
    assert [session.admit(seq) for seq in (0, 1, 2)] == [Admission.REPEAT, Admission.RUN, Admission.REFUSE]
    session.start(1)
    assert [session.admit(seq) for seq in (0, 1, 2)] == [Admission.REFUSE, Admission.WAIT, Admission.REFUSE]
    session.finish("last", done=True)
    assert [session.admit(seq) for seq in (1, 2)] == [Admission.REPEAT, Admission.REFUSE]


class Sent:
    """The messages that a runner sends; `next` waits for it."""

    def __init__(self):
        self.queue: asyncio.Queue[env_pb2.HostMessage] = asyncio.Queue()

    async def next(self, kind):
        async with asyncio.timeout(30):
            while True:
                message = await self.queue.get()
                if message.WhichOneof("message") == kind:
                    return getattr(message, kind)


@pytest.fixture
async def sent():
    return Sent()


@pytest.fixture
async def runner(sent):
    Blocking.gate.clear()
    Blocking.closed = 0
    runner = SessionRunner(as_mapping([Echo, Blocking, Awaiting]), 2, sent.queue.put_nowait)
    yield runner
    Blocking.gate.set()
    runner.close()


def reset(session, environment):
    return env_pb2.Reset(session=session, environment=environment, seed=5, task_json="{}")


def step(session, seq, text):
    return env_pb2.Step(session=session, seq=seq, action=env_pb2.Action(text=text))


async def test_runner_plays_and_repeats(runner, sent):
    runner.reset(reset(1, "test/echo"))
    runner.reset(reset(1, "test/echo"))
    first, repeated = await sent.next("result"), await sent.next("result")
    assert first == repeated and first.observation.text == "seed 5"
    assert list(first.observation.legal_actions) == ["a", "b"]
    runner.step(step(1, 1, "hello"))
    runner.step(step(1, 1, "other text, same seq"))
    assert [(await sent.next("result")).observation.text for _ in range(2)] == ["hello", "hello"]
    runner.step(step(1, 3, "x"))
    assert (await sent.next("result")).message == "EnvProtocolError: step 3 of session 1 follows step 1"
    runner.step(step(1, 2, "end"))
    last = await sent.next("result")
    assert (last.done, last.ending, dict(last.metrics)) == (True, common_pb2.ENDING_OK, {"n": 1.0})
    assert runner.open_sessions == 0
    runner.step(step(1, 2, "end"))
    assert await sent.next("result") == last


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("raise", "EnvironmentFailure: step 1 raised ZeroDivisionError: by nothing"),
        ("nan", "EnvProtocolError: reward nan of step 1 is not a finite number"),
        ("long", "EnvProtocolError: result of 2097166 bytes is larger than 1048576"),
    ],
)
async def test_broken_environments_are_env_errors(runner, sent, action, message):
    runner.reset(reset(1, "test/echo"))
    await sent.next("result")
    runner.step(step(1, 1, action))
    failed = await sent.next("result")
    assert (failed.ending, failed.message, failed.reward) == (common_pb2.ENDING_ENV_ERROR, message, 0)


async def test_a_blocking_step_holds_up_nobody(runner, sent):
    runner.reset(reset(1, "test/blocking"))
    await sent.next("result")
    runner.step(step(1, 1, "go"))
    assert (await sent.next("progress")).message == "still here"
    runner.reset(reset(2, "test/echo"))
    assert (await sent.next("result")).session == 2
    Blocking.gate.set()
    assert (await sent.next("result")).observation.text == "late"


async def test_a_stuck_step_takes_capacity_until_it_ends(runner, sent):
    runner.reset(reset(1, "test/blocking"))
    await sent.next("result")
    runner.step(step(1, 1, "go"))
    await sent.next("progress")
    runner.drop(1)
    assert (await sent.next("credit")).capacity == runner.offered == 1
    await runner.wait_empty()
    Blocking.gate.set()
    assert (await sent.next("credit")).capacity == 2


async def test_async_environments_are_cancelled(runner, sent):
    runner.reset(reset(1, "test/awaiting"))
    await sent.next("result")
    runner.step(step(1, 1, "wait"))
    runner.drop(1)
    assert (await sent.next("credit")).capacity == 1
    assert (await sent.next("credit")).capacity == 2
    runner.reset(reset(2, "test/awaiting"))
    await sent.next("result")
    runner.step(step(2, 1, "x"))
    assert (await sent.next("result")).ending == common_pb2.ENDING_TRUNCATED


async def test_runner_refuses_what_it_does_not_hold(runner, sent):
    runner.reset(reset(1, "test/none"))
    assert (await sent.next("result")).message.startswith("UnknownEnvironment")
    runner.step(step(77, 1, "x"))
    assert (await sent.next("result")).message.startswith("EnvHostLost")
    for session in (2, 3, 4):
        runner.reset(reset(session, "test/echo"))
    results = [await sent.next("result") for _ in range(3)]
    assert [r.done for r in results] == [False, False, True]
    assert "holds 2 of 2" in results[2].message
    runner.keep({3})
    assert runner.open_sessions == 1


# --- threads and outboxes --------------------------------------------------------------------


def test_threads_are_reused_and_never_waited_for():
    threads = DaemonThreads("test")
    names, done = set(), threading.Semaphore(0)

    def job():
        names.add(threading.current_thread().name)
        done.release()

    stuck = threading.Event()
    threads.submit(stuck.wait)  # type: ignore[arg-type]
    for _ in range(20):
        threads.submit(job)
        assert done.acquire(timeout=30)
    assert "test-1" not in names
    stuck.set()
    threads.close()


async def test_outbox_sends_together_what_is_ready_together():
    outbox, frames = Outbox(), []

    async def write(frame):
        frames.append(len(frame))
        await asyncio.sleep(0)

    for number in range(FRAME_MESSAGES + 10):
        outbox.put(env_pb2.Ping(nonce=number))
    outbox.close()
    outbox.put(env_pb2.Ping())
    await outbox.drain_to(write)
    assert frames == [FRAME_MESSAGES, 10]


async def test_outbox_frames_stay_small():
    outbox, frames = Outbox(), []

    async def write(frame):
        frames.append(len(frame))

    for size_bytes in (
        FRAME_BYTES * 2,
        FRAME_BYTES // 3,
        FRAME_BYTES // 3,
        FRAME_BYTES // 3,
        FRAME_BYTES // 3,
    ):
        outbox.put(env_pb2.Observation(text="x" * size_bytes))
    outbox.close()
    await outbox.drain_to(write)
    assert frames == [1, 2, 2]


async def test_outbox_closes_on_a_peer_that_does_not_read():
    outbox = Outbox(limit=3)
    for number in range(5):
        outbox.put(env_pb2.Ping(nonce=number))
    assert outbox.closed

    async def write(frame):
        raise AssertionError("nothing is written after an error")

    with pytest.raises(RpcError, match="left 4 messages"):
        await outbox.drain_to(write)


async def test_outbox_fails_also_while_a_write_is_stuck():
    outbox = Outbox(limit_bytes=4_000)
    stuck, writing = asyncio.Event(), asyncio.Event()

    async def write(frame):
        writing.set()
        await stuck.wait()

    outbox.put(env_pb2.Ping(nonce=1))
    sending = asyncio.create_task(outbox.drain_to(write))
    await writing.wait()
    for _ in range(5):
        outbox.put(env_pb2.Observation(text="x" * 1_000))
    with pytest.raises(RpcError, match="bytes unread"):
        await outbox.failed()
    assert len(outbox) == 0
    sending.cancel()


async def test_whoever_can_wait_waits_for_room():
    outbox, written = Outbox(limit=80), []

    async def write(frame):
        written.extend(frame)

    for number in range(11):
        outbox.put(env_pb2.Ping(nonce=number))
    assert outbox.crowded
    waiting = asyncio.create_task(outbox.wait_for_space())
    await asyncio.sleep(0)
    assert not waiting.done()
    sending = asyncio.create_task(outbox.drain_to(write))
    async with asyncio.timeout(10):
        await waiting
    assert len(written) == 11 and not outbox.crowded
    outbox.close()
    await sending


def test_roles_of_observations_are_carried_and_checked():
    for role, sent in (("user", ""), ("tool", "tool")):
        shown = Observation("7", ("a", "b"), role)
        message = answer(1, 0, shown).result.observation
        assert message.role == sent
        assert observation(message) == shown
    assert observation(env_pb2.Observation(text="7", role="user")).role == "user"
    for role in ("assistant", "system", "Tool"):
        with pytest.raises(EnvProtocolError, match=f"role '{role}'"):
            answer(1, 1, StepResult(Observation("7", role=role)))
        with pytest.raises(EnvProtocolError, match=f"role '{role}'"):
            observation(env_pb2.Observation(text="7", role=role))
