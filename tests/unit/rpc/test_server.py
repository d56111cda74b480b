"""Server and client over real gRPC: typed errors, retries, health, reflection, tokens, drain."""

import asyncio
import contextlib
import socket
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from earl import errors
from earl.rpc import Client, Server, TlsFiles, open_checks, options
from earl.rpc.auth import metadata
from earl.rpc.errors import from_call
from earl.rpc.options import METADATA_BYTES
from earl.rpc.token_file import Role, make
from earl.v1 import env_pb2, env_pb2_grpc
from tests.support.certificates import certified

SERVICE = "earl.v1.EnvGatewayService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Scripted(env_pb2_grpc.EnvGatewayServiceServicer):
    """Raises what it is told to, in order; then answers."""

    def __init__(self):
        self.failures: list[BaseException] = []
        self.calls = 0
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()

    async def ListEnvironments(self, request, context):
        self.calls += 1
        self.entered.set()
        await self.release.wait()
        if self.failures:
            raise self.failures.pop(0)
        return env_pb2.ListEnvironmentsResponse()

    async def Play(self, request_iterator, context):
        async for _ in request_iterator:
            raise errors.EnvProtocolError("no such game", "choose another")
        yield env_pb2.PlayResponse()


@pytest.fixture
async def scripted():
    return Scripted()


def make_server(servicer, bind="127.0.0.1:0", **options):
    server = Server("test", bind, **options)
    server.add(env_pb2_grpc.add_EnvGatewayServiceServicer_to_server, servicer, SERVICE)
    return server


@pytest.fixture
async def server(scripted):
    server = make_server(scripted)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server):
    client = Client(server.address, env_pb2_grpc.EnvGatewayServiceStub)
    yield client
    await client.close()


STRONG = make(Role.WORKER).token
REQUEST = env_pb2.ListEnvironmentsRequest()


async def test_error_arrives_as_its_class(client, scripted):
    scripted.failures = [errors.UnknownWorker("no worker rollout-7", "join again")]
    with pytest.raises(errors.UnknownWorker) as caught:
        await client.call("ListEnvironments", REQUEST, deadline_s=5)
    assert (caught.value.message, caught.value.remedy) == ("no worker rollout-7", "join again")
    assert scripted.calls == 1


async def test_unexpected_error_hides_its_text(client, scripted):
    scripted.failures = [ValueError("secret detail")]
    with pytest.raises(errors.RpcError) as caught:
        await client.call("ListEnvironments", REQUEST, deadline_s=5)
    assert "ValueError" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert scripted.calls == 1


async def test_unavailable_is_retried(client, scripted):
    scripted.failures = [errors.BusUnavailable("redis restarts"), errors.BusUnavailable("redis restarts")]
    await client.call("ListEnvironments", REQUEST, deadline_s=30)
    assert scripted.calls == 3


async def test_unavailable_until_the_deadline_keeps_its_cause(client, scripted, monkeypatch):
    """The clock stands still until the second failure; then the deadline has come."""
    clock = SimpleNamespace(monotonic=lambda: 0.0 if scripted.calls < 2 else 60.0)
    monkeypatch.setattr("earl.rpc.client.time", clock)
    scripted.failures = [errors.BusUnavailable("redis is not there")] * 100
    with pytest.raises(errors.BusUnavailable, match="not there"):
        await client.call("ListEnvironments", REQUEST, deadline_s=60)
    assert scripted.calls == 2


async def test_no_answer_is_deadline_exceeded(client, scripted):
    scripted.release.clear()
    with pytest.raises(errors.DeadlineExceeded, match="ListEnvironments at"):
        await client.call("ListEnvironments", REQUEST, deadline_s=0.3)
    scripted.release.set()


async def test_nobody_listens():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = Client(f"127.0.0.1:{unused.getsockname()[1]}", env_pb2_grpc.EnvGatewayServiceStub)
        with pytest.raises(errors.ServiceUnavailable):
            await client.call("ListEnvironments", REQUEST, deadline_s=20, retry_s=0.4)
        await client.close()


async def test_stream_error_is_typed(client):
    call = client.stream("Play", deadline_s=5)
    await call.write(env_pb2.PlayRequest())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert isinstance(from_call(caught.value, "Play"), errors.EnvProtocolError)


async def test_port_in_use(server, scripted):
    second = make_server(scripted, bind=server.address)
    with pytest.raises(errors.PortInUse, match=server.address):
        await second.start()
    await second.stop()


def test_insecure_bind():
    with pytest.raises(errors.InsecureBind):
        Server("test", "0.0.0.0:0")


async def test_token_is_demanded_of_all_but_health(scripted):
    server = make_server(scripted, tokens="secret")
    address = await server.start()
    for token in ("", "wrong"):
        client = Client(address, env_pb2_grpc.EnvGatewayServiceStub, token=token)
        with pytest.raises(errors.Unauthenticated):
            await client.call("ListEnvironments", REQUEST, deadline_s=5)
        call = client.stream("Play", deadline_s=5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert isinstance(from_call(caught.value, "Play"), errors.Unauthenticated)
        await client.close()
    client = Client(address, env_pb2_grpc.EnvGatewayServiceStub, token="secret")
    await client.call("ListEnvironments", REQUEST, deadline_s=5)
    await client.close()
    async with grpc.aio.insecure_channel(address) as channel:
        assert await health(channel, "") == SERVING
        names: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in names.ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            ):
                pass
    await server.stop()


async def test_tls_with_token(scripted, tmp_path):
    tls = certified(tmp_path)
    server = make_server(scripted, bind="0.0.0.0:0", tokens=STRONG, tls=tls)
    address = (await server.start()).replace("0.0.0.0", "127.0.0.1")
    client = Client(address, env_pb2_grpc.EnvGatewayServiceStub, token=STRONG, tls=tls)
    await client.call("ListEnvironments", REQUEST, deadline_s=20)
    await client.close()
    plain = Client(address, env_pb2_grpc.EnvGatewayServiceStub, token=STRONG)
    with pytest.raises(errors.EarlError):
        await plain.call("ListEnvironments", REQUEST, deadline_s=0.3)
    await plain.close()
    await server.stop()


async def test_no_token_is_sent_off_loopback_without_tls():
    for token in (STRONG, lambda: STRONG):
        with pytest.raises(errors.InsecureCall, match=r"192\.0\.2\.1:7000 in plain text"):
            Client("192.0.2.1:7000", env_pb2_grpc.EnvGatewayServiceStub, token=token)
    await Client("192.0.2.1:7000", env_pb2_grpc.EnvGatewayServiceStub).close()
    tls = TlsFiles()
    await Client("192.0.2.1:7000", env_pb2_grpc.EnvGatewayServiceStub, token=STRONG, tls=tls).close()


async def test_no_proxy_comes_between_this_machine_and_itself(server, monkeypatch):
    asked = asyncio.Event()
    proxy = await asyncio.start_server(lambda reader, writer: asked.set(), "127.0.0.1", 0)
    host, port = proxy.sockets[0].getsockname()
    monkeypatch.setenv("http_proxy", f"http://{host}:{port}")
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    client = Client(server.address, env_pb2_grpc.EnvGatewayServiceStub, token=STRONG)
    await client.call("ListEnvironments", REQUEST, deadline_s=20)
    await client.close()
    assert not asked.is_set()
    # That a client would otherwise go there.
    async with grpc.aio.insecure_channel(server.address, options=options.client(loopback=False)) as channel:
        asking = asyncio.create_task(health(channel, ""))
        await asyncio.wait_for(asked.wait(), 20)
        asking.cancel()
    proxy.close()


async def test_a_connection_that_never_speaks_tls_is_closed(scripted, tmp_path, monkeypatch):
    monkeypatch.setattr(options, "HANDSHAKE_MS", 200)
    server = make_server(scripted, tls=certified(tmp_path))
    host, _, port = (await server.start()).rpartition(":")
    for said in (b"", b"\x16\x03\x01"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 60)
        writer.close()
    await server.stop()


async def test_unreadable_tls_files(scripted, tmp_path):
    tls = TlsFiles(tmp_path / "none.pem", tmp_path / "none.pem")
    server = make_server(scripted, tls=tls)
    with pytest.raises(errors.ConfigError, match="cannot be read"):
        await server.start()
    await server.stop()


async def health(channel, name):
    stub: Any = health_pb2_grpc.HealthStub(channel)
    response = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5)
    return response.status


async def test_health_tells_the_truth(server):
    async with grpc.aio.insecure_channel(server.address) as channel:
        assert await health(channel, SERVICE) == SERVING
        await server.set_serving(SERVICE, False)
        assert await health(channel, SERVICE) == NOT_SERVING
        assert await health(channel, "") == NOT_SERVING
        await server.set_serving(SERVICE, True)
        assert await health(channel, "") == SERVING
        with pytest.raises(KeyError):
            await server.set_serving("earl.v1.Nothing", True)


async def test_reflection_lists_services(server):
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for response in stub.ServerReflectionInfo(iter([request])):
            names = {service.name for service in response.list_services_response.service}
        assert {SERVICE, "grpc.health.v1.Health"} <= names


async def test_what_is_too_large_is_refused(scripted):
    server = make_server(scripted, request_bytes=1000)
    async with grpc.aio.insecure_channel(await server.start()) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ListEnvironments")
        await call(bytes([15 << 3 | 2, 200, 6]) + bytes(840), timeout=5)  # a field that nobody knows
        for raw, metadata in ((b"\x00" * 2000, ()), (b"", [("note", "x" * (METADATA_BYTES + 1))])):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(raw, metadata=metadata, timeout=5)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert scripted.calls == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff\xff", timeout=5)
        assert isinstance(from_call(caught.value, "ListEnvironments"), errors.MalformedRequest)
    await server.stop()


async def test_calls_at_once_are_bounded(scripted, monkeypatch):
    monkeypatch.setattr(options, "SERVER_CALLS", 2)
    monkeypatch.setattr(options, "CONNECTION_CALLS", 1)
    server = make_server(scripted)
    address = await server.start()
    scripted.release.clear()
    clients = [Client(address, env_pb2_grpc.EnvGatewayServiceStub) for _ in range(3)]
    calls = []
    for client in clients[:2]:
        calls.append(asyncio.create_task(client.call("ListEnvironments", REQUEST, deadline_s=10)))
        await scripted.entered.wait()
        scripted.entered.clear()
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="RPC limit exceeded") as caught:
            await channel.unary_unary(f"/{SERVICE}/ListEnvironments")(b"", timeout=20)
    assert isinstance(from_call(caught.value, "ListEnvironments"), errors.ServiceUnavailable)
    waits = asyncio.create_task(clients[2].call("ListEnvironments", REQUEST, deadline_s=20))
    # Of one connection a second call is not even begun: it waits until the first has ended.
    calls.append(asyncio.create_task(clients[0].call("ListEnvironments", REQUEST, deadline_s=10)))
    await asyncio.wait(calls[2:], timeout=0.1)
    assert scripted.calls == 2 and not calls[2].done()
    scripted.release.set()
    await asyncio.gather(*calls, waits)
    assert scripted.calls == 4
    for client in clients:
        await client.close()
    await server.stop()


async def failure(call):
    """The code that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


@pytest.mark.parametrize(
    "method", [f"{SERVICE}/ListEnvironments", f"{SERVICE}/Play", "grpc.health.v1.Health/Watch"]
)
async def test_who_is_refused_holds_no_place(scripted, monkeypatch, method):
    monkeypatch.setattr(options, "SERVER_CALLS", 2)
    server = make_server(scripted, tokens=STRONG)
    address = await server.start()
    async with grpc.aio.insecure_channel(address) as channel:
        silent = channel.stream_unary(f"/{method}")  # and so never sends its message
        for _ in range(4):
            assert await failure(silent(timeout=20)) is grpc.StatusCode.UNAUTHENTICATED
        await channel.unary_unary(f"/{SERVICE}/ListEnvironments")(b"", metadata=metadata(STRONG), timeout=20)
        assert await health(channel, SERVICE) == SERVING
        watch = health_pb2_grpc.HealthStub(channel).Watch(  # type: ignore[arg-type]
            health_pb2.HealthCheckRequest(service=SERVICE), metadata=metadata(STRONG), timeout=20
        )
        assert (await watch.read()).status == SERVING
        watch.cancel()
    await server.stop()


async def test_what_is_open_to_all_is_bounded(scripted, monkeypatch):
    monkeypatch.setattr(open_checks, "MESSAGE_S", 3600.0)
    monkeypatch.setattr(open_checks, "AT_ONCE", 2)
    server = make_server(scripted, tokens=STRONG)
    async with grpc.aio.insecure_channel(await server.start()) as channel:
        silent = channel.stream_unary(open_checks.METHOD)
        calls = [silent(timeout=60) for _ in range(3)]
        ended, waiting = await asyncio.wait(
            [asyncio.create_task(failure(call)) for call in calls], return_when=asyncio.FIRST_COMPLETED
        )
        assert [one.result() for one in ended] == [grpc.StatusCode.DEADLINE_EXCEEDED] and len(waiting) == 2
        assert await health(channel, SERVICE) == SERVING  # although others wait
        for call in calls:
            call.cancel()
        await asyncio.wait(waiting)
        monkeypatch.setattr(open_checks, "MESSAGE_S", 0.01)
        assert await failure(silent(timeout=60)) is grpc.StatusCode.DEADLINE_EXCEEDED
        monkeypatch.setattr(open_checks, "MESSAGE_S", 60.0)
        malformed = channel.unary_unary(open_checks.METHOD)(b"\xff\xff", timeout=20)
        assert await failure(malformed) is grpc.StatusCode.INVALID_ARGUMENT
        assert await failure(silent(iter([]), timeout=20)) is grpc.StatusCode.INVALID_ARGUMENT
        assert await health(channel, SERVICE) == SERVING
    await server.stop()


async def test_stop_lets_calls_finish(server, client, scripted):
    scripted.release.clear()
    call = asyncio.create_task(client.call("ListEnvironments", REQUEST, deadline_s=10))
    await scripted.entered.wait()
    stopping = asyncio.create_task(server.stop())
    await asyncio.wait({stopping}, timeout=0.2)
    assert not stopping.done()
    scripted.release.set()
    await call
    await stopping


async def refused_by_stopping(scripted: Scripted) -> list[grpc.aio.AioRpcError]:
    """Returns what 20 callers, who call again and again, get from a server that stops."""
    scripted.entered.clear()
    server = make_server(scripted)
    async with grpc.aio.insecure_channel(await server.start()) as channel:
        method = channel.unary_unary(f"/{SERVICE}/ListEnvironments")

        async def call_until_refused() -> grpc.aio.AioRpcError:
            while True:
                try:
                    await method(b"", timeout=20)
                except grpc.aio.AioRpcError as error:
                    return error

        calling = [asyncio.create_task(call_until_refused()) for _ in range(20)]
        await scripted.entered.wait()
        await server.stop()
        return await asyncio.gather(*calling)


async def test_a_call_that_arrives_while_the_server_stops_is_typed_as_unavailable(scripted):
    codes: set[grpc.StatusCode] = set()
    for _ in range(50):  # gRPC answers CANCELLED in a moment that most rounds meet, but not every one
        for error in await refused_by_stopping(scripted):
            codes.add(error.code())
            assert isinstance(from_call(error, "ListEnvironments"), errors.ServiceUnavailable)
        if grpc.StatusCode.CANCELLED in codes:
            return
    pytest.fail(f"no call arrived while a server stopped; they ended with {codes}")
