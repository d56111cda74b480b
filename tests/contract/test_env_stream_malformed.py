"""Bytes that are no messages, and peers that do not read: only who sends or leaves them suffers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest

from earl import errors
from earl.env import EnvHost, GatewayClient, Limits
from earl.env.frames import MAX_MESSAGES, Frames
from earl.rpc.errors import from_call
from earl.rpc.options import CLIENT
from earl.rpc.outbox import Outbox
from earl.v1 import env_pb2
from services.env_gateway.api import servicer, streams
from tests.contract.test_env_stream import RawHost, Service, opened, stepping
from tests.contract.test_env_stream_host import Counting

LIMITS = Limits(queue_s=20, reset_s=20, step_s=20, episode_s=60)
BOUND_S = 30


def result_with(field: bytes) -> bytes:
    """An AttachRequest with a Result of session 1, seq 1 and `field`, by its bytes."""
    result = b"\x08\x01\x10\x01" + field
    message = b"\x12" + bytes([len(result)]) + result
    return b"\x0a" + bytes([len(message)]) + message


BAD_UTF8 = result_with(b"\x1a\x04\x0a\x02\xff\xfe")


@asynccontextmanager
async def raw_stream(address, method="Attach") -> AsyncIterator[Any]:
    """A stream that writes bytes as they are."""
    # Without probing, the transport itself takes no more than 64 KiB unread.
    async with grpc.aio.insecure_channel(address, options=[*CLIENT, ("grpc.http2.bdp_probe", 0)]) as channel:
        yield channel.stream_stream(f"/earl.v1.EnvGatewayService/{method}")(timeout=BOUND_S)


def hello_bytes(name, **fields):
    info = env_pb2.EnvironmentInfo(name="game", schema_hash="s")
    hello = env_pb2.Hello(
        protocol=1, host=name, instance=77, epoch=1, capacity=1, environments=[info], **fields
    )
    return env_pb2.AttachRequest(messages=[env_pb2.HostMessage(hello=hello)]).SerializeToString()


async def ended_with(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
            continue
    return from_call(caught.value, "Attach")


@pytest.mark.parametrize("garbage", [BAD_UTF8, b"\xff\xff\xff"])
async def test_a_host_that_sends_no_protobuf(garbage):
    async with Service() as service:
        client, good = GatewayClient(service.address), RawHost(service.address, name="good")
        await good.hello()
        session, number = await opened(client, good)
        task, _ = await stepping(session, good)
        async with raw_stream(service.address) as call:
            await call.write(hello_bytes("bad"))
            assert env_pb2.AttachResponse.FromString(await call.read()).messages[0].HasField("welcome")
            await call.write(garbage)
            error = await ended_with(call)
        assert isinstance(error, errors.EnvProtocolError) and "cannot be decoded" in str(error)
        assert [host.name for host in service.gateway.pool.hosts.values()] == ["good"]
        assert service.gateway.refused["broken_stream"] == 1
        await good.result(number, 1, reward=0.5)
        assert (await task).reward == 0.5
        await good.close()
        await client.close()


async def test_a_host_whose_first_answer_was_not_written_yet(monkeypatch):
    """The first write to it is cancelled by what it sends, and the status still reaches it."""

    class Breaking(Frames):
        async def write(self, messages):
            writing = asyncio.create_task(super().write(messages))
            await asyncio.sleep(0)  # gRPC has the message now, and its answer is not there yet
            writing.cancel()
            await asyncio.wait({writing})
            raise errors.EnvProtocolError("broken while the first answer is written")

    monkeypatch.setattr(servicer, "Frames", Breaking)
    async with Service() as service, raw_stream(service.address) as call:
        await call.write(hello_bytes("bad"))
        assert "while the first answer is written" in str(await ended_with(call))


async def test_a_host_that_sends_no_protobuf_at_once():
    async with Service() as service, raw_stream(service.address) as call:
        await call.write(BAD_UTF8)
        assert isinstance(await ended_with(call), errors.EnvProtocolError)


async def test_a_result_of_the_wrong_type():
    """A reward that was sent as text would otherwise be a reward of 0."""
    async with Service() as service:
        client, host = GatewayClient(service.address), RawHost(service.address)
        await host.hello()
        session, number = await opened(client, host)
        task, _ = await stepping(session, host)
        result = env_pb2.Result(session=number, seq=1)
        result.MergeFromString(b"\x22\x031.0")
        await host.say(result=result)
        outcome = await task
        assert "reward has wire type 2" in outcome.message
        await host.close()
        await client.close()


async def test_a_client_that_sends_no_protobuf_leaves_others_alone():
    async with Service() as service:
        client, host = GatewayClient(service.address), RawHost(service.address)
        await host.hello()
        await opened(client, host)
        async with raw_stream(service.address, "Play") as call:
            await call.write(b"\x0a\x06\x0a\x04\x12\x02\xff\xfe")  # an Open whose environment is no UTF-8
            assert isinstance(await ended_with(call), errors.EnvProtocolError)
        assert len(service.gateway.sessions) == 1
        await host.close()
        await client.close()


async def test_a_frame_of_very_many_messages():
    async with Service() as service, raw_stream(service.address, "Play") as call:
        await call.write(b"\x0a\x00" * (MAX_MESSAGES + 1))
        assert f"frame of {MAX_MESSAGES + 1} messages" in str(await ended_with(call))


async def test_what_a_client_asks_for_and_does_not_read_is_bounded(monkeypatch):
    """Answers to a client that reads none pile up to a bound; then nothing more of it is read."""
    monkeypatch.setattr(servicer, "Outbox", partial(Outbox, limit=4_000))
    async with Service() as service, raw_stream(service.address, "Play") as call:
        bad = env_pb2.ClientMessage(step=env_pb2.Step(session=1, seq=1))
        frame = env_pb2.PlayRequest(messages=[bad] * 500).SerializeToString()
        await call.write(frame)
        while True:
            writing = asyncio.create_task(call.write(frame))
            # How long it waits proves nothing: a write that is only slow is waited for, and another follows.
            _, unread = await asyncio.wait({writing}, timeout=0.3)
            if unread and any(client.outbox.crowded for client in service.servicer._clients):
                break
            await writing
        (client,) = service.servicer._clients
        assert client.outbox.crowded and len(client.outbox) <= 1_000
        read = service.gateway.refused["unknown_session"]
        async with asyncio.timeout(BOUND_S):
            while service.gateway.refused["unknown_session"] == read:  # it reads now, and all goes on
                await call.read()


async def test_a_host_that_does_not_read_is_let_go(monkeypatch):
    monkeypatch.setattr(streams, "Outbox", partial(Outbox, limit_bytes=1 << 20))
    async with Service(reconnect_s=0) as service:
        client, host = GatewayClient(service.address), RawHost(service.address)
        await host.hello(capacity=100)
        task = {"filling": "x" * 100_000}
        opening = [asyncio.create_task(client.open("game", task, 0, LIMITS)) for _ in range(60)]
        (known,) = service.gateway.pool.hosts.values()
        with pytest.raises(errors.RpcError, match="unread"):
            async with asyncio.timeout(BOUND_S):
                await known.outbox.failed()
        assert "bytes unread" in str(await host.refused())
        for one in opening:
            one.cancel()
        await host.close()
        await client.close()


async def test_a_host_of_a_gateway_that_sends_no_protobuf_ends_with_the_reason():
    async def attach(request_iterator, context):
        await context.read()
        await context.write(b"\xff\xff\xff")
        await context.read()

    handler = grpc.stream_stream_rpc_method_handler(attach)  # type: ignore[arg-type]
    server = grpc.aio.server()
    generic = grpc.method_handlers_generic_handler("earl.v1.EnvGatewayService", {"Attach": handler})
    server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with pytest.raises(errors.EnvProtocolError, match="cannot be decoded"):
        async with asyncio.timeout(BOUND_S):
            await EnvHost(f"127.0.0.1:{port}", Counting, 1).run(asyncio.Event())
    await server.stop(0)
