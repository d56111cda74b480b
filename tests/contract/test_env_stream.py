"""The environment stream over real gRPC, against a host that speaks raw messages and breaks the rules.

Whatever a host in any language gets wrong is refused and counted, and never becomes a reward.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from earl import errors
from earl.config.environment import GatewayConfig
from earl.env import Ending, GatewayClient, Limits
from earl.rpc import Client, Server
from earl.rpc.client import EOF
from earl.rpc.errors import from_call
from earl.v1 import common_pb2, env_pb2, env_pb2_grpc
from services.env_gateway.api.servicer import SERVICE, EnvGatewayServicer
from services.env_gateway.gateway import Gateway

LIMITS = Limits(queue_s=20, reset_s=20, step_s=20, episode_s=60)
BOUND_S = 30


class Service:
    """A gateway in this process, served for real."""

    def __init__(self, **config: Any):
        settings = GatewayConfig.model_validate({"lease_s": 20.0} | config)
        self.gateway = Gateway(settings, asyncio.get_running_loop().time)
        self.servicer = EnvGatewayServicer(self.gateway, 0.05)
        self.server = Server("gateway", "127.0.0.1:0", drain_s=1)
        add = env_pb2_grpc.add_EnvGatewayServiceServicer_to_server
        self.server.add(add, self.servicer, SERVICE)

    async def __aenter__(self):
        self.address = await self.server.start()
        self.task = asyncio.create_task(self.servicer.run())
        return self

    async def __aexit__(self, *exc: object):
        self.task.cancel()
        await self.server.stop()


class RawHost:
    """One stream of an env host, message by message."""

    def __init__(self, address: str, instance=1, epoch=1, name="raw"):
        self.client = Client(address, env_pb2_grpc.EnvGatewayServiceStub)
        self.call = self.client.stream("Attach", deadline_s=BOUND_S)
        self.identity = {"host": name, "instance": instance, "epoch": epoch}
        self.unread: list[env_pb2.GatewayMessage] = []

    async def hello(self, environments=("game",), schema="s", capacity=4, protocol=1, **bounds):
        infos = [env_pb2.EnvironmentInfo(name=n, schema_hash=schema, **bounds) for n in environments]
        hello = env_pb2.Hello(protocol=protocol, environments=infos, capacity=capacity, **self.identity)
        await self.say(hello=hello)
        return await self.next("welcome")

    async def say(self, **message):
        await self.call.write(env_pb2.AttachRequest(messages=[env_pb2.HostMessage(**message)]))

    async def result(self, session, seq, **fields):
        await self.say(result=env_pb2.Result(session=session, seq=seq, **fields))

    async def next(self, kind):
        """The next message of this kind; pings are answered, others skipped."""
        while True:
            while self.unread:
                message = self.unread.pop(0)
                if message.WhichOneof("message") == kind:
                    return getattr(message, kind)
                if message.WhichOneof("message") == "ping":
                    await self.say(pong=env_pb2.Pong(nonce=message.ping.nonce))
            response = await self.call.read()
            assert response is not EOF, f"the stream ended before {kind}"
            self.unread.extend(response.messages)

    async def refused(self):
        """The error that the gateway ends this stream with."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await self.call.read() is not EOF:
                continue
        return from_call(caught.value, "Attach")

    async def close(self):
        self.call.cancel()
        await self.client.close()


@pytest.fixture
async def service():
    async with Service() as service:
        yield service


@pytest.fixture
async def client(service):
    client = GatewayClient(service.address)
    yield client
    await client.close()


@pytest.fixture
async def host(service):
    host = RawHost(service.address)
    await host.hello()
    yield host
    await host.close()


async def opened(client, host, **fields):
    """An open session and the gateway's id of it."""
    opening = asyncio.create_task(client.open("game", {}, 0, LIMITS))
    reset = await host.next("reset")
    await host.result(reset.session, 0, observation=env_pb2.Observation(text="start"), **fields)
    return await opening, reset.session


async def until(fact: Callable[[], bool]) -> None:
    """Waits for what the gateway learns from one stream, before it is asked over another."""
    async with asyncio.timeout(BOUND_S):
        while not fact():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def without_room(service, host):
    """The gateway knows that its only host takes no session."""
    await host.say(credit=env_pb2.Credit(capacity=0))
    (known,) = service.gateway.pool.hosts.values()
    await until(lambda: known.capacity == 0)


async def stepping(session, host, text="go"):
    """A step under way: its task and the host's view of it."""
    task = asyncio.create_task(session.step(text))
    return task, await host.next("step")


async def test_a_session(service, client, host):
    session, number = await opened(client, host)
    assert session.observation.text == "start"
    task, step = await stepping(session, host, "left")
    assert (step.session, step.seq, step.action.text) == (number, 1, "left")
    seen = env_pb2.Observation(text="over", legal_actions=["a"])
    ok = common_pb2.ENDING_OK
    await host.result(number, 1, observation=seen, reward=1, done=True, ending=ok, metrics={"win": 1})
    outcome = await task
    assert (outcome.observation.text, outcome.reward, outcome.done) == ("over", 1.0, True)
    assert (outcome.ending, outcome.metrics) == (Ending.OK, {"win": 1.0})
    with pytest.raises(errors.EnvProtocolError, match="is over"):
        await session.step("more")
    assert (await host.next("close")).session == number


@pytest.mark.parametrize(
    ("offset", "seq", "counted"), [(0, 2, "wrong_seq"), (0, 0, "late_result"), (1, 1, "late_result")]
)
async def test_results_out_of_place_change_nothing(service, client, host, offset, seq, counted):
    session, number = await opened(client, host)
    task, _ = await stepping(session, host)
    await host.result(number + offset, seq, reward=9)
    await host.result(number, 1, reward=0.5)
    assert (await task).reward == 0.5
    assert service.gateway.refused[counted] == 1


async def test_a_result_for_another_hosts_session(service, client, host):
    session, number = await opened(client, host)
    task, _ = await stepping(session, host)
    stranger = RawHost(service.address, instance=2, name="stranger")
    await stranger.hello(environments=("game", "chess"), capacity=0)
    opening = asyncio.create_task(client.open("chess", {}, 0, LIMITS))
    await stranger.result(number, 1, reward=9)
    await stranger.say(credit=env_pb2.Credit(capacity=1))
    await stranger.next("reset")  # sent after all of that was read
    assert service.gateway.refused["foreign_session"] == 1
    await host.result(number, 1, reward=0.5)
    assert (await task).reward == 0.5
    opening.cancel()
    await stranger.close()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"reward": float("nan")}, "reward nan"),
        ({"reward": float("-inf")}, "reward -inf"),
        ({"observation": env_pb2.Observation(text="x" * (1 << 21))}, "larger than"),
        ({"done": True, "ending": 42}, "unknown ending 42"),
        ({"done": True}, "unknown ending 0"),
        ({"ending": common_pb2.ENDING_OK}, "not done"),
    ],
)
async def test_results_that_may_not_pass(service, client, host, fields, text):
    session, number = await opened(client, host)
    task, _ = await stepping(session, host)
    await host.result(number, 1, **fields)
    outcome = await task
    assert (outcome.done, outcome.ending, outcome.reward) == (True, Ending.ENV_ERROR, 0.0)
    assert outcome.message.startswith("EnvProtocolError: ") and text in outcome.message
    assert service.gateway.refused["bad_result"] == 1


async def test_a_return_outside_of_what_was_declared(service, client):
    host = RawHost(service.address)
    await host.hello(min_reward=-1, max_reward=1)
    session, number = await opened(client, host)
    task, _ = await stepping(session, host)
    await host.result(number, 1, reward=5, done=True, ending=common_pb2.ENDING_OK)
    outcome = await task
    assert outcome.ending == Ending.ENV_ERROR and "return 5 is outside" in outcome.message
    await host.close()


async def test_an_environment_error_at_the_reset(client, host):
    opening = asyncio.create_task(client.open("game", {}, 0, LIMITS))
    reset = await host.next("reset")
    await host.result(reset.session, 0, done=True, ending=common_pb2.ENDING_ENV_ERROR, message="boom")
    with pytest.raises(errors.EnvironmentFailure, match="boom"):
        await opening


async def test_an_infrastructure_error_raises_and_gives_no_reward(client, host):
    session, number = await opened(client, host)
    task, _ = await stepping(session, host)
    infra = common_pb2.ENDING_INFRA_ERROR
    await host.result(number, 1, reward=1, done=True, ending=infra, message="EnvHostLost: sandbox died")
    with pytest.raises(errors.EnvHostLost, match="sandbox died"):
        await task
    assert session.done


async def test_duplicate_environments(service, host):
    twice = RawHost(service.address, instance=2)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await twice.hello(environments=("chess", "chess"))
    assert isinstance(from_call(caught.value, "Attach"), errors.DuplicateEnvironment)
    changed = RawHost(service.address, instance=3)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await changed.hello(schema="another")
    assert isinstance(from_call(caught.value, "Attach"), errors.DuplicateEnvironment)
    assert service.gateway.refused["hello: DuplicateEnvironment"] == 2
    same = RawHost(service.address, instance=4)
    await same.hello()
    for stream in (twice, changed, same):
        await stream.close()


@pytest.mark.parametrize(
    "hello", [{"protocol": 9}, {"environments": ()}, {"capacity": 1 << 30}, {"environments": ("",)}]
)
async def test_bad_hellos(service, hello):
    host = RawHost(service.address)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await host.hello(**hello)
    assert isinstance(from_call(caught.value, "Attach"), errors.EnvProtocolError)
    assert not service.gateway.pool.hosts
    await host.close()


async def test_the_first_message_is_hello(service):
    host = RawHost(service.address)
    await host.say(pong=env_pb2.Pong())
    assert isinstance(await host.refused(), errors.EnvProtocolError)
    await host.close()


async def test_a_newer_stream_takes_over_with_what_was_in_flight(service, client, host):
    session, number = await opened(client, host)
    task, _ = await stepping(session, host)
    newer = RawHost(service.address, epoch=2)
    assert list((await newer.hello()).sessions) == [number]
    assert (await newer.next("step")).seq == 1
    assert "fenced by epoch 2" in str(await host.refused())
    older = RawHost(service.address, epoch=1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await older.hello()
    assert "fenced by epoch 2" in str(from_call(caught.value, "Attach"))
    await newer.result(number, 1, reward=0.5)
    assert (await task).reward == 0.5
    for stream in (newer, older):
        await stream.close()


async def test_a_draining_host_gets_no_new_sessions(service, client, host):
    session, number = await opened(client, host)
    await host.say(drain=env_pb2.Drain(grace_s=5, reason="update"))
    task, _ = await stepping(session, host)
    await host.result(number, 1)
    await task
    other = RawHost(service.address, instance=2, name="other")
    await other.hello(capacity=1)
    await opened(client, other)
    await other.close()


async def test_credit_opens_and_closes_room(service, client, host):
    await without_room(service, host)
    opening = asyncio.create_task(client.open("game", {}, 0, LIMITS))
    await until(lambda: service.gateway.pool.waiting("game") == 1)
    await host.say(credit=env_pb2.Credit(capacity=1))
    reset = await host.next("reset")
    await host.result(reset.session, 0)
    await opening


async def test_a_full_fleet_times_out_in_the_queue(service, client, host):
    await without_room(service, host)
    with pytest.raises(errors.DeadlineExceeded, match=r"no host had free capacity within 0\.3 s"):
        await client.open("game", {}, 0, Limits(queue_s=0.3))


async def test_unknown_environment():
    async with Service(lease_s=0.5) as service:
        client = GatewayClient(service.address)
        with pytest.raises(errors.UnknownEnvironment, match="'gmae'"):
            await client.open("gmae", {}, 0, LIMITS)
        await client.close()


async def test_slow_resets_and_steps_time_out(client, host):
    with pytest.raises(errors.DeadlineExceeded, match="reset took longer"):
        await client.open("game", {}, 0, Limits(reset_s=0.2))
    await host.next("reset")
    assert (await host.next("cancel")).seq == 0
    opening = asyncio.create_task(client.open("game", {}, 0, Limits(step_s=0.2)))
    reset = await host.next("reset")
    await host.result(reset.session, 0)
    session = await opening
    with pytest.raises(errors.DeadlineExceeded, match="step 1 took longer"):
        await session.step("x")
    assert (await host.next("cancel")).session == reset.session


async def test_a_silent_host_is_lost_within_its_lease():
    async with Service(lease_s=0.6) as service:
        client, host = GatewayClient(service.address), RawHost(service.address)
        await host.hello()
        session, _ = await opened(client, host)
        with pytest.raises(errors.EnvHostLost, match="sent nothing"):
            await session.step("x")  # the raw host answers neither this nor pings
        assert isinstance(await host.refused(), errors.EnvHostLost)
        await host.close()
        await client.close()


async def test_a_client_repeats_and_breaks_the_seq_rule(service, host):
    client = Client(service.address, env_pb2_grpc.EnvGatewayServiceStub)
    call = client.stream("Play", deadline_s=BOUND_S)

    async def say(**message):
        await call.write(env_pb2.PlayRequest(messages=[env_pb2.ClientMessage(**message)]))

    async def answers():
        return [message.result for message in (await call.read()).messages]

    await say(open=env_pb2.Open(session=5, environment="game"))
    reset = await host.next("reset")
    await host.result(reset.session, 0)
    assert (await answers())[0].session == 5
    await say(step=env_pb2.Step(session=5, seq=1))
    await host.next("step")
    await host.result(reset.session, 1, reward=0.5)
    first = (await answers())[0]
    await say(step=env_pb2.Step(session=5, seq=1))
    assert (await answers())[0] == first
    await say(step=env_pb2.Step(session=5, seq=7))
    refusal = (await answers())[0]
    assert refusal.message.startswith("EnvProtocolError: step 7") and not refusal.done
    await say(step=env_pb2.Step(session=6, seq=1))
    assert "not open on this stream" in (await answers())[0].message
    await client.close()
    await host.next("close")


async def test_a_gateway_that_goes_away(service, client, host):
    session, _ = await opened(client, host)
    task, _ = await stepping(session, host)
    await service.servicer.drain(0.1)
    with pytest.raises(errors.EnvHostLost):
        await task


async def test_listing(service, client, host):
    assert await client.environments() == {"game": 4}
    await opened(client, host)
    (entry,) = service.gateway.listing().entries
    assert (entry.hosts, entry.capacity, entry.open_sessions) == (1, 4, 1)
