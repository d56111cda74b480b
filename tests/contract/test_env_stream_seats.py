"""Sessions of several seats over real gRPC: the client, the gateway, and hosts that know seats or do not."""

import asyncio

import pytest

from earl import errors
from earl.env import EnvHost, GatewayClient
from earl.v1 import common_pb2, env_pb2
from tests.contract.test_env_stream import LIMITS, RawHost, Service, stepping
from tests.support.seats import Heap

OK = common_pb2.ENDING_OK


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
async def heaps(service):
    """A host of the SDK, until the test has ended."""
    stop, ready = asyncio.Event(), asyncio.Event()
    host = EnvHost(service.address, [Heap], name="heaps")
    task = asyncio.create_task(host.run(stop, ready=ready.set))
    await ready.wait()
    yield
    stop.set()
    await task


async def test_two_seats_of_one_session(client, heaps):
    session = await client.open("test/heap", seed=5, limits=LIMITS, seats=2)
    moves, outcome = 0, None
    while not session.done:
        assert session.observation.seat == moves % 2
        outcome = await session.step(session.observation.legal_actions[0])
        moves += 1
        assert len(outcome.seat_rewards) == 2 and outcome.reward == 0
    assert outcome is not None and outcome.seat == (moves - 1) % 2
    assert outcome.seat_rewards[outcome.seat] == 1 and sum(outcome.seat_rewards) == 0
    assert [metrics["win"] for metrics in outcome.seat_metrics] == [max(0, r) for r in outcome.seat_rewards]


async def test_one_seat_of_the_same_environment(client, heaps):
    session = await client.open("test/heap", seed=5, limits=LIMITS)
    outcome = await session.step("nonsense")
    assert (outcome.reward, outcome.seat, outcome.seat_rewards, outcome.seat_metrics) == (-1, 0, (), ())


async def test_more_seats_than_the_environment_offers(client, heaps):
    with pytest.raises(errors.EnvProtocolError, match="seats 3 of 'test/heap', which offers 2"):
        await client.open("test/heap", seed=5, limits=LIMITS, seats=3)


@pytest.mark.parametrize("seats", [0, -1, 65])
async def test_seats_that_no_session_has(client, seats):
    with pytest.raises(errors.EnvProtocolError, match="play 1 to 64"):
        await client.open("test/heap", seed=5, limits=LIMITS, seats=seats)


async def test_a_host_that_knows_no_seats_plays_as_before(service, client):
    host = RawHost(service.address)
    await host.hello()
    with pytest.raises(errors.EnvProtocolError, match="which offers 1: open it with seats=1"):
        await client.open("game", {}, 0, LIMITS, seats=2)
    opening = asyncio.create_task(client.open("game", {}, 0, LIMITS))
    reset = await host.next("reset")
    assert not reset.seats
    await host.result(reset.session, 0)
    task, step = await stepping(await opening, host)
    await host.result(step.session, 1, reward=1, done=True, ending=OK)
    assert (await task).reward == 1
    await host.close()


async def test_a_seat_that_there_is_not_is_the_hosts_fault(service, client):
    host = RawHost(service.address)
    await host.hello(seats=2)
    opening = asyncio.create_task(client.open("game", {}, 0, LIMITS, seats=2))
    reset = await host.next("reset")
    await host.result(reset.session, 0, observation=env_pb2.Observation(seat=2))
    with pytest.raises(errors.EnvironmentFailure, match="observation is for seat 2"):
        await opening
    assert service.gateway.refused["bad_result"] == 1
    await host.close()


async def test_a_gateway_that_knows_no_seats(client, service, monkeypatch):
    """An older gateway ignores the field of Open, so the host plays one seat: the first step shows it."""
    host = RawHost(service.address)
    await host.hello(seats=2)
    handle = service.gateway.handle_client

    def older(stream, message):
        message.open.ClearField("seats") if message.WhichOneof("message") == "open" else None
        handle(stream, message)

    monkeypatch.setattr(service.gateway, "handle_client", older)
    opening = asyncio.create_task(client.open("game", {}, 0, LIMITS, seats=2))
    reset = await host.next("reset")
    await host.result(reset.session, 0)
    session = await opening
    task, step = await stepping(session, host)
    await host.result(step.session, 1, reward=1)
    with pytest.raises(errors.EnvProtocolError, match="no rewards for its 2 seats"):
        await task
    assert session.done
    await host.close()
