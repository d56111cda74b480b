"""Episodes in processes of their own: what breaks one ends that episode and nothing else."""

import asyncio
import os

import pytest

from earl.env import Action, Environment, ToolCall
from earl.env.codec import action_message
from earl.env.runner import SessionRunner
from earl.env.serve import as_mapping, load
from earl.errors import ConfigError
from earl.v1 import common_pb2, env_pb2
from tests.support.apart import Apart
from tests.unit.env.test_sdk import Echo, Sent, reset, step


@pytest.fixture
async def sent():
    return Sent()


@pytest.fixture
async def runner(sent):
    runner = SessionRunner(as_mapping([Apart, Echo]), 3, sent.queue.put_nowait)
    yield runner
    runner.close()


def is_gone(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_process_serves_one_episode_after_another_and_closes_each(
    runner, sent, tmp_path, monkeypatch
):
    runner.close()
    monkeypatch.setenv("EARL_TEST_CLOSED", str(tmp_path / "closed"))
    runner = SessionRunner(load("tests.support.apart:Apart"), 3, sent.queue.put_nowait)
    pids = []
    for session in (1, 2):
        runner.reset(reset(session, "test/apart"))
        pids.append((await sent.next("result")).observation.text)
        calls = action_message(Action("go", [ToolCall("a", {"b": 1}, "c")]))
        runner.step(env_pb2.Step(session=session, seq=1, action=calls))
        text = (await sent.next("result")).observation.text
        assert text == f"{pids[-1]} {session} (ToolCall(name='a', arguments={{'b': 1}}, id='c'),)"
        runner.step(step(session, 2, "end"))
        last = await sent.next("result")
        assert (last.ending, last.reward) == (common_pb2.ENDING_OK, 0.5)
        runner.drop(session)
    assert pids[0] == pids[1] != str(os.getpid())
    runner.reset(reset(3, "test/apart"))
    await sent.next("result")
    runner.close()
    assert (tmp_path / "closed").read_text().splitlines() == ["closed"] * 3
    assert is_gone(pids[0])


async def test_what_breaks_a_process_ends_its_episode_alone(runner, sent):
    runner.reset(reset(1, "test/apart"))
    beside = (await sent.next("result")).observation.text
    for session, (action, said) in enumerate(
        [
            ("segfault", "EnvironmentCrashed: the process of test/apart was killed by SIGSEGV in step 1"),
            ("memory", "EnvironmentFailure: step 1 raised MemoryError: "),
            ("garbage", "EnvProtocolError: "),
        ],
        2,
    ):
        runner.reset(reset(session, "test/apart"))
        pid = (await sent.next("result")).observation.text
        runner.step(step(session, 1, action))
        result = await sent.next("result")
        assert (result.ending, result.reward) == (common_pb2.ENDING_ENV_ERROR, 0.0)
        assert result.message.startswith(said.strip())
        async with asyncio.timeout(30):
            while not is_gone(pid):  # noqa: ASYNC110 - a process tells nobody that it has ended
                await asyncio.sleep(0.01)
    runner.step(step(1, 1, "on"))
    assert (await sent.next("result")).observation.text == f"{beside} 1 ()"


async def test_a_stuck_process_is_killed_when_its_step_is_cancelled(runner, sent):
    runner.reset(reset(1, "test/apart"))
    pid = (await sent.next("result")).observation.text
    runner.step(step(1, 1, "spin"))
    assert (await sent.next("progress")).message == "spinning"
    runner.reset(reset(2, "test/echo"))
    assert (await sent.next("result")).session == 2
    runner.drop(1)
    while (await sent.next("credit")).capacity < 3:
        pass
    assert is_gone(pid)


async def test_no_process_to_be_had_is_the_infrastructures_failure(sent, monkeypatch):
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    runner = SessionRunner(as_mapping(Apart), 1, sent.queue.put_nowait)
    runner.reset(reset(1, "test/apart"))
    result = await sent.next("result")
    assert result.ending == common_pb2.ENDING_INFRA_ERROR
    assert result.message.startswith(
        "EnvBackendLost: no process for tests.support.apart:Apart could be started"
    )
    runner.close()


async def test_what_cannot_have_a_process_of_its_own(sent):
    class Local(Environment):
        name = "test/local"
        isolation = "process"

    for environments in (as_mapping(Local), as_mapping({"other/name": Apart})):
        with pytest.raises(ConfigError, match="process"):
            SessionRunner(environments, 1, sent.queue.put_nowait)
    with pytest.raises(ConfigError, match="'container'"):
        SessionRunner(as_mapping(Echo), 1, sent.queue.put_nowait, isolation="container")
