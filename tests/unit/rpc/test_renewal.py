"""Certificates that are renewed while real servers show them and real clients trust them."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import grpc
import pytest
from cryptography import x509

from earl.errors import ConfigError, ServiceUnavailable
from earl.rpc import Client, Server, TlsFiles
from earl.rpc.certificates import make, renew
from earl.rpc.metrics_endpoint import MetricsEndpoint
from earl.v1 import env_pb2, env_pb2_grpc
from tests.support.certificates import certified
from tests.support.dashboard import Served
from tests.support.recorded import recorded

REQUEST = env_pb2.ListEnvironmentsRequest()
STUB = env_pb2_grpc.EnvGatewayServiceStub


class Empty(env_pb2_grpc.EnvGatewayServiceServicer):
    async def ListEnvironments(self, request, context):
        return env_pb2.ListEnvironmentsResponse()

    async def Play(self, request_iterator, context):
        async for _ in request_iterator:
            yield env_pb2.PlayResponse()


async def serving(tls: TlsFiles, bind: str = "127.0.0.1:0") -> Server:
    server = Server("test", bind, tls=tls)
    server.add(env_pb2_grpc.add_EnvGatewayServiceServicer_to_server, Empty(), "earl.v1.EnvGatewayService")
    await server.start()
    return server


async def shown(address: str, tls: TlsFiles, name: str | None = None) -> int:
    """The serial number of the certificate that a new connection is shown, and that its authority signed."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(tls.authority))
    context.check_hostname = name is not None
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name or "")
    raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return x509.load_der_x509_certificate(raw).serial_number


def on_disk(tls: TlsFiles) -> int:
    assert tls.certificate is not None
    return x509.load_pem_x509_certificate(tls.certificate.read_bytes()).serial_number


def files(tls: TlsFiles) -> tuple[Path, Path]:
    assert tls.certificate is not None and tls.key is not None
    return tls.certificate, tls.key


async def renewed_while(address: str, tls: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    """Checks that what listens there shows what lies on the disk, but never half of a renewal."""
    certificate, key = files(tls)
    first = await shown(address, tls)
    assert first == on_disk(tls) == await shown(address, tls, "localhost")
    renew(certificate.parent, days=1)
    second = await shown(address, tls)
    assert second == on_disk(tls) != first
    # Of the one after that the key is there first, then the certificate is gone, then both belong together.
    former, (late, early) = certificate.read_bytes(), renewed(tls)
    key.write_bytes(early)
    assert await shown(address, tls) == second and "is not taken: TLS files" in caplog.text
    certificate.unlink()
    assert await shown(address, tls) == second and "cannot be read" in caplog.text
    certificate.write_bytes(former)
    assert await shown(address, tls) == second
    certificate.write_bytes(late)
    assert await shown(address, tls, "localhost") == on_disk(tls) != second


def renewed(tls: TlsFiles) -> tuple[bytes, bytes]:
    """Another certificate and its key, which are not yet where they belong."""
    certificate, key = files(tls)
    had = certificate.read_bytes(), key.read_bytes()
    renew(certificate.parent, days=1)
    found = certificate.read_bytes(), key.read_bytes()
    certificate.write_bytes(had[0])
    key.write_bytes(had[1])
    return found


async def test_a_server_shows_what_was_renewed_and_open_connections_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = certified(tmp_path / "tls")
    server = await serving(tls)
    client = Client(server.address, STUB, tls=tls)
    stream = client.stream("Play", deadline_s=60)
    await stream.write(env_pb2.PlayRequest())
    assert await stream.read() == env_pb2.PlayResponse()
    await renewed_while(server.address, tls, caplog)
    await stream.write(env_pb2.PlayRequest())
    assert await stream.read() == env_pb2.PlayResponse()
    await client.close()
    await server.stop()


async def test_the_metrics_and_the_page_show_what_was_renewed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certified(tmp_path / "tls")
    endpoint = MetricsEndpoint("127.0.0.1:0", [], tls=tls)
    await renewed_while(await endpoint.start(), tls, caplog)
    await endpoint.close()
    (tmp_path / "run").mkdir()
    recorded(tmp_path / "run", steps=2)
    for name, path in (("CERT", tls.certificate), ("KEY", tls.key), ("CA", tls.authority)):
        monkeypatch.setenv(f"EARL_TLS_{name}", str(path))
    async with Served(tmp_path / "run") as served:
        await renewed_while(served.address, tls, caplog)


async def test_who_calls_takes_another_authority_once_it_is_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = certified(tmp_path)
    server = await serving(tls)
    client, streaming = (Client(server.address, STUB, tls=tls) for _ in range(2))
    await client.call("ListEnvironments", REQUEST, deadline_s=20)
    make(tmp_path, ["127.0.0.1"], days=2, authority_days=2, force=True)
    await client.call("ListEnvironments", REQUEST, deadline_s=20)  # over the connection that there is
    address = server.address
    await server.stop()
    server = await serving(tls, address)
    await client.call("ListEnvironments", REQUEST, deadline_s=60)
    assert await played(streaming) == env_pb2.PlayResponse()
    assert tls.authority is not None
    tls.authority.unlink()
    await server.stop()
    with pytest.raises(ServiceUnavailable):
        await client.call("ListEnvironments", REQUEST, deadline_s=2)
    assert "the authority changed and is not taken" in caplog.text
    for one in (client, streaming):
        await one.close()


async def played(client: Client) -> env_pb2.PlayResponse:
    """Behaves as env hosts do: a stream that fails is opened again."""
    while True:
        stream = client.stream("Play", deadline_s=60)
        try:
            await stream.write(env_pb2.PlayRequest())
            return await stream.read()
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        except asyncio.InvalidStateError:
            pass
        finally:
            stream.cancel()
        await asyncio.sleep(0)


def test_a_renewal_is_for_the_same_names_by_the_same_authority(tmp_path: Path) -> None:
    made = make(tmp_path, ["earl.example.org", "10.1.2.3"], days=90, authority_days=10)
    authority = made.path("ca.pem").read_bytes()
    key = made.path("server.key").read_bytes()
    again = renew(tmp_path, ["*.earl.example.org"], days=2)
    assert set(again.names) == {*made.names, "*.earl.example.org"} and again.server_ends < made.server_ends
    assert made.path("ca.pem").read_bytes() == authority and made.path("server.key").read_bytes() != key
    server = x509.load_pem_x509_certificate(made.path("server.pem").read_bytes())
    server.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    assert made.path("server.key").stat().st_mode & 0o777 == 0o600
    other = make(tmp_path / "other", [], days=1, authority_days=1)
    made.path("ca.key").write_bytes(other.path("ca.key").read_bytes())
    with pytest.raises(ConfigError, match=r"not of ca\.pem"):
        renew(tmp_path, days=1)
    made.path("ca.key").unlink()
    with pytest.raises(ConfigError, match=r"ca\.key is no key"):
        renew(tmp_path, days=1)
