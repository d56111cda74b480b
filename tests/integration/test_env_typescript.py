"""examples/env_typescript in Node: episodes through a gateway, lost streams, bad results, SIGTERM."""

import asyncio
import json
import os
import random
import signal
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from earl import errors
from earl.env import Ending, GatewayClient, Limits
from earl.env.conformance.bench import Bench
from earl.env.conformance.card import CheckVerdict
from earl.env.conformance.examine import examine
from earl.env.conformance.plan import ExamPlan
from earl.env.conformance.servicer import examining
from earl.env.tool_calls import ToolCall, render
from earl.rpc import Client
from earl.stack.ports import free_port
from earl.v1 import env_pb2, env_pb2_grpc
from tests.contract.test_env_stream_host import lose_stream, playing, serving
from tests.support.certificates import certified
from tools.check_typescript import FOLDER, installed

FAULTY = Path(__file__).resolve().parents[1] / "support" / "faulty_host.ts"
LIMITS = Limits(queue_s=30, reset_s=20, step_s=20, episode_s=60)
BATTLESHIP, COINS = "example/battleship", "example/coins"


@pytest.fixture(scope="module")
def node():
    return str(installed())


@asynccontextmanager
async def typescript(node, address, *arguments, script=FOLDER / "main.ts", access=None):
    """A script of the example in a process of its own, attached to the gateway."""
    process = await asyncio.create_subprocess_exec(
        node,
        str(script),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"EARL_GATEWAY": address} | (access or {}),
    )
    try:
        assert process.stdout
        async with asyncio.timeout(30):
            assert json.loads(await process.stdout.readline())["address"] == address
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ended(process):
    """The exit code of a process that was told to end."""
    async with asyncio.timeout(30):
        return await process.wait()


def weigh(left, right):
    return render(ToolCall("weigh", {"left": list(left), "right": list(right)}))


async def find_heavy(client, seed):
    """Win an episode with nine coins in two weighings; the coin that was heavy."""
    session = await client.open(COINS, {"weighings": 2}, seed, LIMITS)
    coins = [*range(1, 10)]
    while len(coins) > 1:
        third = len(coins) // 3
        sides = coins[:third], coins[third : 2 * third]
        outcome = await session.step(weigh(*sides))
        assert outcome.observation.role == "tool" and not outcome.done
        said = outcome.observation.text.split()[0]
        coins = {"left": sides[0], "right": sides[1], "both": coins[2 * third :]}[said]
    outcome = await session.step(f" {coins[0]}\n")
    assert (outcome.ending, outcome.reward, outcome.metrics) == (Ending.OK, 1.0, {"win": 1.0, "illegal": 0.0})
    return coins[0]


async def fire_at_random(client, seed):
    """Play battleship to its end with actions that depend on the seed alone; all that was seen."""
    session = await client.open(BATTLESHIP, {"shots": 30}, seed, LIMITS)
    rng, seen, rewards = random.Random(seed), [session.observation], []
    while not session.done:
        outcome = await session.step(rng.choice(session.observation.legal_actions))
        seen.append(outcome.observation)
        rewards.append(outcome.reward)
    hits = outcome.observation.text.count("X")
    assert sum(rewards) == pytest.approx(hits / 7) and outcome.metrics["illegal"] == 0
    assert outcome.ending is (Ending.OK if hits == 7 else Ending.TRUNCATED)
    assert outcome.metrics["win"] == float(hits == 7) and outcome.metrics["shots"] == len(rewards)
    return seen


async def examined(node, plan, leaks=False):
    """The report card of main.ts in a process of its own."""
    async with examining("127.0.0.1:0", "") as examiner, typescript(node, examiner.address) as process:

        async def terminate():
            process.terminate()
            return await ended(process)

        link = await examiner.host(within_s=30)
        bench = Bench(link, plan, pid=process.pid if leaks else 0, terminate=terminate)
        return await examine(bench)


async def test_conformance(node):
    card = await examined(node, ExamPlan(seeds=4, sessions=16))
    assert card.environments == [BATTLESHIP, COINS]
    assert [check for check in card.checks if check.verdict in (CheckVerdict.FAIL, CheckVerdict.WARN)] == []
    assert {check.name for check in card.checks if check.verdict is CheckVerdict.SKIP} == {"leaks", "script"}


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_many_episodes_leave_nothing_behind(node):
    # So many that the garbage which V8 lets lie until its first full collections is not taken for a leak.
    plan = ExamPlan(episodes=10_000, max_steps=3, only=frozenset({"leaks"}))
    card = await examined(node, plan, leaks=True)
    assert [check for check in card.checks if check.verdict is CheckVerdict.FAIL] == []


async def test_episodes_through_the_gateway(node):
    async with (
        serving(lease_s=20) as (gateway, address),
        playing(address) as client,
        typescript(node, address) as process,
    ):
        (entry, _) = sorted(gateway.listing().entries, key=lambda one: one.environment.name)
        assert (entry.environment.name, entry.capacity) == (BATTLESHIP, 64)
        # Seeds are whole 64 bits: the last two differ in the one that a double would lose.
        seeds = [*range(20), 2**64 - 2, 2**64 - 1]
        games = await asyncio.gather(*(fire_at_random(client, seed) for seed in seeds))
        again = await asyncio.gather(*(fire_at_random(client, seed) for seed in seeds))
        assert games == again
        coins = await asyncio.gather(*(find_heavy(client, seed) for seed in range(40)))
        assert len(set(coins)) > 5
        with pytest.raises(errors.EnvironmentFailure, match="RangeError: shots = 99 is not from 7 to 36"):
            await client.open(BATTLESHIP, {"shots": 99}, 1, LIMITS)
        illegal = await (await client.open(BATTLESHIP, {}, 1, LIMITS)).step("[Z9]")
        assert (illegal.ending, illegal.reward, illegal.metrics["illegal"]) == (Ending.OK, 0.0, 1.0)
        session = await client.open(COINS, {}, 1, LIMITS)
        wrong = await session.step(weigh([1], [1]))
        assert (wrong.observation.text, wrong.done) == ("error: coin 1 is on both sides", False)
        thinking = await client.open(COINS, {"weighings": 1}, 1, LIMITS)
        used = await thinking.step(f"<think>{weigh([2], [3])} or</think>{weigh([1], [2])}")
        assert len(used.observation.tool_results) == 1 and not used.done
        unsaid = await thinking.step(f"<think>{weigh([1], [2])}")
        assert (unsaid.ending, unsaid.metrics["illegal"]) == (Ending.OK, 1.0)
        # SIGTERM: no new episodes, this one goes on to its end.
        process.terminate()
        assert (await session.step("heads")).metrics["illegal"] == 1.0
        assert await ended(process) == 0
        assert not gateway.refused and gateway.totals["failed: EnvHostLost"] == 0


@pytest.mark.parametrize("bound", [300, 20_000])
async def test_the_run_file_bounds_an_action_with_calls(node, bound):
    async with (
        serving(lease_s=20, max_action_characters=bound) as (_, address),
        playing(address) as client,
        typescript(node, address),
    ):
        session = await client.open(COINS, {}, 1, LIMITS)
        outcome = await session.step(weigh([1], [2]).rjust(bound))
        assert not outcome.observation.tool_results[0].is_error
        outcome = await session.step(weigh([1], [2]).rjust(bound + 1))
        assert outcome.observation.text == f"error: more than {bound} characters"


async def test_a_lost_stream_costs_no_episode_and_no_weighing(node):
    async with serving(lease_s=20) as (gateway, address), typescript(node, address):
        client = Client(address, env_pb2_grpc.EnvGatewayServiceStub)
        call = client.stream("Play", deadline_s=60)

        async def say(**message):
            await call.write(env_pb2.PlayRequest(messages=[env_pb2.ClientMessage(**message)]))

        async def answer(kind):
            while True:
                for message in (await call.read()).messages:
                    if message.WhichOneof("message") == kind:
                        return getattr(message, kind)

        # The weighing ends long after its stream was lost.
        task = '{"settle_s": 1, "weighings": 1}'
        await say(open=env_pb2.Open(session=1, environment=COINS, task_json=task))
        assert "<tools>" in (await answer("result")).observation.text
        arguments = json.dumps({"left": [1], "right": [2, 3]})
        calls = [env_pb2.ToolCall(id=name, name="weigh", arguments_json=arguments) for name in "ab"]
        await say(step=env_pb2.Step(session=1, seq=1, action=env_pb2.Action(tool_calls=calls)))
        assert (await answer("progress")).message == "the scales swing"
        (host,) = gateway.pool.hosts.values()
        await lose_stream(host)  # the host dials again
        result = await answer("result")
        assert host.epoch == 2
        # Two calls of one action, and one weighing: the step ran once, though it was asked twice.
        first, second = result.observation.tool_results
        assert (first.id, first.text, first.is_error) == ("a", "right is heavier", False)
        assert (second.id, second.text, second.is_error) == ("b", "error: no weighings are left", True)
        await client.close()


async def test_another_gateway_in_the_place_of_one_that_is_gone(node):
    async with AsyncExitStack() as stack:
        # No outgoing connection can take its port between the two, the host's own attempts included.
        async with serving(f"127.0.0.1:{free_port('127.0.0.1')}") as (_, address):
            await stack.enter_async_context(typescript(node, address))
        async with serving(address) as (gateway, _), playing(address) as client:
            await find_heavy(client, 1)  # waits for the host to dial again
            (host,) = gateway.pool.hosts.values()
            assert host.epoch > 1


async def test_a_cancelled_step_gives_its_place_back(node):
    async with (
        serving(lease_s=20) as (gateway, address),
        playing(address) as client,
        typescript(node, address, "--capacity", "1", "--name", "small") as process,
    ):
        session = await client.open(COINS, {"settle_s": 60}, 1, Limits(episode_s=2))
        with pytest.raises(errors.DeadlineExceeded, match="the episode took longer"):
            await session.step(weigh([1], [2]))
        again = await client.open(COINS, {}, 1, LIMITS)
        assert not (await again.step(weigh([1], [2]))).done
        (host,) = gateway.pool.hosts.values()
        assert (host.name, host.capacity) == ("small", 1)
        await again.close()
        process.terminate()
        assert await ended(process) == 0


async def test_what_must_not_be_sent(node):
    async with (
        serving(lease_s=20, quarantine_faults=100) as (gateway, address),
        playing(address) as client,
        typescript(node, address, script=FAULTY),
    ):

        async def fails(action, text):
            session = await client.open("test/faulty", {}, 1, LIMITS)
            outcome = await session.step(action)
            assert (outcome.ending, outcome.reward) == (Ending.ENV_ERROR, 0.0)
            assert outcome.message.startswith(text) and len(outcome.message) <= 1024

        await fails("reward NaN", "EnvProtocolError: reward = NaN")
        await fails("metric Infinity", "EnvProtocolError: metric steps = Infinity")
        await fails("lone surrogate", "EnvProtocolError: observation is not valid Unicode")
        await fails("lone surrogate in a list", "EnvProtocolError: legal action is not valid Unicode")
        await fails("too long", "EnvProtocolError: result of ")
        await fails("no text", "EnvProtocolError: an observation is 7")
        await fails("no result", "EnvProtocolError: a step gave undefined")
        await fails("thrown text", "EnvironmentFailure: step 1 threw a text")
        await fails("thrown and long", "EnvironmentFailure: step 1 threw Error: 🙂")
        await fails("no such fault", "EnvironmentFailure: step 1 threw TypeError")
        assert not gateway.refused  # the host caught each of them
        assert next(iter(gateway.pool.hosts.values())).epoch == 1


async def test_a_frozen_host_comes_back(node):
    async with (
        serving(lease_s=3.0) as (gateway, address),
        playing(address) as client,
        typescript(node, address) as process,
    ):
        session = await client.open(COINS, {}, 1, LIMITS)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(errors.EnvHostLost, match="sent nothing for 3 s"):
            await session.step("1")
        process.send_signal(signal.SIGCONT)
        await find_heavy(client, 1)
        assert gateway.totals["hosts_lost"] == 1


async def test_tls_and_a_token(node, tmp_path):
    tls = certified(tmp_path)
    access = {"EARL_TOKEN": "secret", "EARL_TLS_CA": str(tls.authority)}
    async with serving(token="secret", tls=tls) as (gateway, address):
        with pytest.raises(json.JSONDecodeError):  # it ends without having attached
            async with typescript(node, address, access=access | {"EARL_TOKEN": "guess"}):
                pass
        assert not gateway.pool.hosts
        async with typescript(node, address, access=access) as host:
            client = GatewayClient(address, token="secret", tls=tls)
            await find_heavy(client, 3)
            await client.close()
            host.terminate()
            assert await ended(host) == 0


async def test_whom_this_machine_trusts(node, tmp_path):
    tls = certified(tmp_path)
    access = {"EARL_TOKEN": "secret", "EARL_TLS_CA": "system", "SSL_CERT_FILE": str(tls.authority)}
    async with (
        serving(token="secret", tls=tls) as (gateway, address),
        typescript(node, address, access=access) as host,
    ):
        assert gateway.pool.hosts
        host.terminate()
        assert await ended(host) == 0


async def test_no_token_goes_off_this_machine_in_plain_text(node):
    for address in ("192.0.2.1:7000", "127.evil:7000", "[::2]:7000"):
        process = await asyncio.create_subprocess_exec(
            node,
            str(FOLDER / "main.ts"),
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {"EARL_GATEWAY": address, "EARL_TOKEN": "secret", "EARL_TLS_CA": ""},
        )
        _, said = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 1
        assert f"a token would be sent to {address} in plain text" in said.decode()


async def test_a_client_in_typescript(node):
    async with serving(lease_s=20) as (gateway, address), typescript(node, address):

        async def play(*arguments):
            process = await asyncio.create_subprocess_exec(
                node,
                str(FOLDER / "play.ts"),
                *arguments,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ | {"EARL_GATEWAY": address},
            )
            out, err = await process.communicate()
            return process.returncode, [json.loads(line) for line in out.splitlines()], err.decode()

        code, played, _ = await play(BATTLESHIP, "--episodes", "8", "--seed", str(2**64 - 8))
        assert code == 0 and [int(one["seed"]) for one in played] == [*range(2**64 - 8, 2**64)]
        assert all(one["steps"] == one["shots"] and 0 <= one["return"] <= 1 for one in played)
        assert not gateway.sessions
        code, played, err = await play(COINS, "--task", '{"coins": 2}')
        assert (code, played) == (1, []) and "RangeError: coins = 2 is not from 3 to 27" in err
