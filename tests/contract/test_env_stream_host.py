"""The environment stream with EARL's own host at its other end: lost streams, frozen and killed processes."""

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from earl import errors
from earl.config.environment import GatewayConfig
from earl.env import Ending, EnvHost, Environment, GatewayClient, Limits, StepResult
from earl.rpc import Server, TlsFiles
from earl.rpc.tokens import AcceptedTokens
from earl.v1 import env_pb2_grpc
from services.env_gateway.api.servicer import SERVICE, EnvGatewayServicer
from services.env_gateway.gateway import Gateway
from services.env_gateway.state.pool import HostState

LIMITS = Limits(queue_s=20, reset_s=20, step_s=20, episode_s=60)


class Counting(Environment):
    """Counts its steps; "wait" waits for the test, "end" ends."""

    name = "test/counting"
    blocking = False
    release: asyncio.Event
    entered: asyncio.Event
    runs = 0

    async def reset(self, seed, task):
        self.count = 0
        return "0"

    async def step(self, action):
        type(self).runs += 1
        self.count += 1
        if action == "wait":
            type(self).entered.set()
            await type(self).release.wait()
        return StepResult(str(self.count), float(self.count), done=action == "end")


@asynccontextmanager
async def serving(
    bind: str = "127.0.0.1:0", *, token: AcceptedTokens | str = "", tls: TlsFiles | None = None, **config: Any
):
    """A gateway in this process, served for real: (gateway, address)."""
    gateway = Gateway(GatewayConfig.model_validate(config), asyncio.get_running_loop().time)
    servicer = EnvGatewayServicer(gateway, 0.05)
    server = Server("gateway", bind, tokens=token, tls=tls, drain_s=1)
    server.add(env_pb2_grpc.add_EnvGatewayServiceServicer_to_server, servicer, SERVICE)
    address = await server.start()
    sweeping = asyncio.create_task(servicer.run())
    try:
        yield gateway, address
    finally:
        sweeping.cancel()
        await server.stop()


@asynccontextmanager
async def hosting(address, environments: Any = Counting, **options: Any):
    """An EnvHost in this process: its stop event and its task."""
    Counting.release, Counting.entered, Counting.runs = asyncio.Event(), asyncio.Event(), 0
    stop, ready = asyncio.Event(), asyncio.Event()
    host = EnvHost(address, environments, 8, **options)
    task = asyncio.create_task(host.run(stop, ready.set))
    try:
        async with asyncio.timeout(20):
            await ready.wait()
        yield stop, task
    finally:
        stop.set()
        Counting.release.set()
        await task


@asynccontextmanager
async def playing(address):
    client = GatewayClient(address)
    try:
        yield client
    finally:
        await client.close()


async def lose_stream(host: HostState) -> None:
    """Ends a host's stream on the gateway's side, and returns once nothing more is read from it."""
    epoch = host.epoch
    host.outbox.close()
    async with asyncio.timeout(20):
        while host.attached and host.epoch == epoch:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_lost_stream_costs_no_episode():
    async with serving(lease_s=20) as (gateway, address), hosting(address), playing(address) as client:
        session = await client.open("test/counting", {}, 1, LIMITS)
        await session.step("a")
        step = asyncio.create_task(session.step("wait"))
        await Counting.entered.wait()
        (host,) = gateway.pool.hosts.values()
        await lose_stream(host)  # the host dials again
        Counting.release.set()
        outcome = await step
        assert (outcome.observation.text, host.epoch) == ("2", 2)
        assert (await session.step("end")).observation.text == "3"
        assert Counting.runs == 3


async def test_a_host_that_the_gateway_gave_up_dials_again():
    async with serving(lease_s=20) as (gateway, address), hosting(address), playing(address) as client:
        session = await client.open("test/counting", {}, 1, LIMITS)
        step = asyncio.create_task(session.step("wait"))
        await Counting.entered.wait()
        (host,) = gateway.pool.hosts.values()
        host.last_seen_s -= 30  # as if nothing had been heard of it for longer than its lease
        with pytest.raises(errors.EnvHostLost, match="sent nothing"):
            await step
        again = await client.open("test/counting", {}, 2, LIMITS)
        assert (await again.step("end")).ending is Ending.OK


async def test_draining_lets_episodes_end():
    async with serving(lease_s=20) as (gateway, address), playing(address) as client:
        async with hosting(address) as (stop, task):
            session = await client.open("test/counting", {}, 1, LIMITS)
            step = asyncio.create_task(session.step("wait"))
            await Counting.entered.wait()
            stop.set()
            Counting.release.set()
            await step
            assert (await session.step("end")).ending is Ending.OK
            await task
        assert gateway.totals["failed: EnvHostLost"] == 0
        assert not gateway.pool.hosts


async def test_draining_is_bounded():
    async with (
        serving(lease_s=20) as (_, address),
        playing(address) as client,
        hosting(address, drain_s=0.2) as (stop, task),
    ):
        session = await client.open("test/counting", {}, 1, LIMITS)
        step = asyncio.create_task(session.step("wait"))
        await Counting.entered.wait()
        stop.set()
        with pytest.raises(errors.EnvHostLost):
            await step
        await task


async def test_a_host_that_is_refused_ends_with_the_reason():
    changed = type("Changed", (Counting,), {"action_schema": {"type": "object"}})
    async with serving(lease_s=20) as (_, address), hosting(address):
        with pytest.raises(errors.DuplicateEnvironment, match="test/counting"):
            await EnvHost(address, changed, 1).run(asyncio.Event())


async def test_a_host_without_a_gateway_gives_up():
    async with serving(lease_s=20) as (_, address):
        pass
    with pytest.raises(errors.ServiceUnavailable, match="no gateway at"):
        await EnvHost(address, Counting, 1, give_up_s=0.3).run(asyncio.Event())


async def test_many_sessions_at_once_stay_apart():
    async with serving(lease_s=20) as (gateway, address), hosting(address), playing(address) as client:

        async def play(number):
            session = await client.open("test/counting", {}, number, LIMITS)
            seen = [(await session.step("x")).observation.text for _ in range(number % 5)]
            last = await session.step("end")
            await session.close()
            return [*seen, last.observation.text]

        played = await asyncio.gather(*(play(number) for number in range(60)))
        assert played == [[str(i + 1) for i in range(number % 5 + 1)] for number in range(60)]
        assert not gateway.sessions and not gateway.refused


# --- hosts that are processes ----------------------------------------------------------------

HOST = """
import asyncio, sys
from earl.env import EnvHost
from earl.env.adapters.open_spiel import environments
from earl.rpc.main import announce, run

async def main(stop):
    await EnvHost(sys.argv[1], environments()).run(stop, lambda: announce("host", sys.argv[1]))

run(main)
"""


@asynccontextmanager
async def host_process(address):
    """A host in a process of its own, attached."""
    command = (sys.executable, "-c", HOST, address)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout
        assert json.loads(await process.stdout.readline())["ready"] == "host"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_frozen_host_is_noticed_within_its_lease_and_comes_back():
    async with (
        serving(lease_s=1.0) as (gateway, address),
        host_process(address) as process,
        playing(address) as client,
    ):
        session = await client.open("open_spiel/tic_tac_toe", {}, 1, LIMITS)
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(errors.EnvHostLost, match="sent nothing for 1 s"):
            await session.step("[4]")  # bounded by the lease: the step alone might take 20 s
        process.send_signal(signal.SIGCONT)
        again = await client.open("open_spiel/tic_tac_toe", {}, 1, LIMITS)
        assert not (await again.step("[4]")).done
        assert gateway.totals["hosts_lost"] == 1


async def test_a_killed_host_is_an_infrastructure_error():
    async with serving(lease_s=1.0) as (_, address), playing(address) as client:
        async with host_process(address) as process:
            session = await client.open("open_spiel/tic_tac_toe", {}, 1, LIMITS)
            process.kill()
            with pytest.raises(errors.EnvHostLost):
                await session.step("[4]")
        async with host_process(address):
            again = await client.open("open_spiel/tic_tac_toe", {}, 1, LIMITS)
            assert not (await again.step("[4]")).done


@asynccontextmanager
async def proxy(address):
    """A TCP proxy before the gateway: its address, and a function that cuts all of its connections."""
    host, port = address.split(":")
    writers: list[asyncio.StreamWriter] = []

    async def pump(reader, writer):
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader, writer):
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        writers.extend((writer, there_writer))
        await asyncio.gather(pump(reader, there_writer), pump(there_reader, writer))

    def drop():
        for writer in writers:
            writer.transport.abort()
        writers.clear()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield "{}:{}".format(*server.sockets[0].getsockname()[:2]), drop
    finally:
        server.close()
        drop()


async def test_a_lost_connection_costs_no_episode():
    async with (
        serving(lease_s=20, reconnect_s=20) as (gateway, address),
        proxy(address) as (front, drop),
        hosting(front),
        playing(address) as client,
    ):
        session = await client.open("test/counting", {}, 1, LIMITS)
        step = asyncio.create_task(session.step("wait"))
        await Counting.entered.wait()
        drop()
        Counting.release.set()
        assert (await step).observation.text == "1"
        assert (await session.step("end")).observation.text == "2"
        assert gateway.totals["reconnects"] == 1 and Counting.runs == 2
