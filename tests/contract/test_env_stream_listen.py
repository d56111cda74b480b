"""Env hosts that listen: the gateway dials them, and the stream is the same as when they dial."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest

from earl import errors
from earl.env import Ending, EnvHost, Limits
from earl.env.frames import Frames
from earl.rpc import Client
from earl.rpc.access import Access
from earl.rpc.errors import from_call
from earl.v1 import env_pb2, env_pb2_grpc
from services.env_gateway.api.host_dialer import HostDialer
from tests.contract.test_env_stream_host import Counting, lose_stream, playing, serving

LIMITS = Limits(queue_s=20, reset_s=20, step_s=20, episode_s=60)
BOUND_S = 20


@asynccontextmanager
async def listening(environments=Counting, listen="127.0.0.1:0", **options):
    """An EnvHost that listens, in this process: the host and its stop event."""
    Counting.release, Counting.entered, Counting.runs = asyncio.Event(), asyncio.Event(), 0
    stop, ready = asyncio.Event(), asyncio.Event()
    host = EnvHost("", environments, 8, listen=listen, **options)
    task = asyncio.create_task(host.run(stop, ready.set))
    try:
        async with asyncio.timeout(BOUND_S):
            await ready.wait()
        yield host, stop
    finally:
        stop.set()
        Counting.release.set()
        async with asyncio.timeout(BOUND_S):
            await task


@asynccontextmanager
async def dialling(gateway, address, **options):
    task = asyncio.create_task(HostDialer(gateway, address, **options).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_an_episode_on_a_host_that_listens():
    async with (
        serving(lease_s=20) as (gateway, address),
        listening() as (host, _),
        dialling(gateway, host.address),
        playing(address) as client,
    ):
        session = await client.open("test/counting", {}, 1, LIMITS)
        assert (await session.step("a")).observation.text == "1"
        assert (await session.step("end")).ending is Ending.OK


async def test_a_lost_stream_is_dialled_again_and_costs_no_episode():
    async with (
        serving(lease_s=20, reconnect_s=BOUND_S) as (gateway, address),
        listening() as (listener, _),
        dialling(gateway, listener.address),
        playing(address) as client,
    ):
        session = await client.open("test/counting", {}, 1, LIMITS)
        step = asyncio.create_task(session.step("wait"))
        await Counting.entered.wait()
        (host,) = gateway.pool.hosts.values()
        await lose_stream(host)  # the gateway dials again
        Counting.release.set()
        assert (await step).observation.text == "1"
        assert (host.epoch, gateway.totals["reconnects"], Counting.runs) == (2, 1, 1)


async def test_a_host_that_stops_lets_its_episodes_end():
    async with serving(lease_s=20) as (gateway, address), playing(address) as client:
        async with listening() as (host, stop), dialling(gateway, host.address):
            session = await client.open("test/counting", {}, 1, LIMITS)
            stop.set()
            assert (await session.step("end")).ending is Ending.OK
        assert gateway.totals["failed: EnvHostLost"] == 0


async def test_a_host_that_appears_later_is_found():
    async with listening() as (host, _):
        address = host.address
    async with (
        serving(lease_s=20) as (gateway, served_at),
        dialling(gateway, address),
        listening(listen=address),
        playing(served_at) as client,
    ):
        session = await client.open("test/counting", {}, 1, LIMITS)
        assert (await session.step("end")).done


async def test_a_newer_stream_takes_over():
    async with listening() as (host, _):
        client = Client(host.address, env_pb2_grpc.EnvHostServiceStub)
        calls, hellos = [], []
        for _ in range(2):
            calls.append(client.stream("Serve", deadline_s=BOUND_S))
            frames = Frames(calls[-1], env_pb2.ServeRequest)
            messages = await frames.read()
            assert messages is not None
            hellos.append(messages[0].hello)
            welcome = env_pb2.Welcome(protocol=1, lease_s=BOUND_S, max_text_bytes=1 << 20)
            await frames.write([env_pb2.GatewayMessage(welcome=welcome)])
        assert hellos[0].instance == hellos[1].instance
        assert [hello.epoch for hello in hellos] == [1, 2]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await calls[0].read()
        assert "newer stream" in str(from_call(caught.value, "Serve"))
        for call in calls:
            call.cancel()
        await client.close()


async def test_sessions_that_no_gateway_asks_for_are_dropped():
    closed = asyncio.Event()

    class Closing(Counting):
        async def close(self):
            closed.set()

    async with (
        serving(lease_s=20) as (gateway, address),
        playing(address) as client,
        listening(Closing, give_up_s=0.1) as (host, _),
    ):
        async with dialling(gateway, host.address):
            await client.open("test/counting", {}, 1, LIMITS)
        async with asyncio.timeout(BOUND_S):
            await closed.wait()


async def test_the_token_is_demanded():
    async with listening(token="secret") as (host, _):
        for token in ("", "guess"):
            client = Client(host.address, env_pb2_grpc.EnvHostServiceStub, token=token)
            call = client.stream("Serve", deadline_s=BOUND_S)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert isinstance(from_call(caught.value, "Serve"), errors.Unauthenticated)
            await client.close()
        async with (
            serving(lease_s=20) as (gateway, address),
            dialling(gateway, host.address, access=Access("secret")),
            playing(address) as player,
        ):
            await player.open("test/counting", {}, 1, LIMITS)


async def test_it_does_not_listen_off_loopback_without_tls_and_token():
    with pytest.raises(errors.InsecureBind):
        await EnvHost("", Counting, listen="0.0.0.0:0").run(asyncio.Event())


@pytest.mark.parametrize("where", [{}, {"gateway": "127.0.0.1:1", "listen": "127.0.0.1:0"}])
def test_a_host_dials_or_listens(where):
    with pytest.raises(errors.ConfigError, match="give one of them"):
        EnvHost(environments=Counting, **where)


def test_a_bad_address_is_named():
    with pytest.raises(errors.ConfigError, match="nowhere"):
        HostDialer(None, "nowhere")  # type: ignore[arg-type]
