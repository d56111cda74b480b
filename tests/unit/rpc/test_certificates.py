"""`earl certs`: what it makes, and that real servers and clients hold to it."""

import datetime

import pytest
from cryptography import x509
from typer.testing import CliRunner

from earl import errors
from earl.cli.machine.certs import app
from earl.rpc import Client, Server, TlsFiles
from earl.rpc.certificates import FILES, LOCAL, alternative, ends, make
from earl.rpc.token_file import Role
from earl.rpc.token_file import make as make_token
from earl.v1 import env_pb2, env_pb2_grpc


def told(*arguments):
    """Returns what `earl certs` prints; raises what it raises."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.output


def test_what_is_made(tmp_path):
    there = tmp_path / "tls"
    said = told("new", there, "--host", "gateway.example.org", "--host", "10.1.2.3", "--days", "30")
    modes = {name: (there / name).stat().st_mode & 0o777 for name in FILES}
    assert modes == {"ca.pem": 0o644, "ca.key": 0o600, "server.pem": 0o644, "server.key": 0o600}
    server = x509.load_pem_x509_certificate((there / "server.pem").read_bytes())
    authority = x509.load_pem_x509_certificate((there / "ca.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gateway.example.org", "localhost"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["10.1.2.3", "127.0.0.1", "::1"]
    left = ends(there / "server.pem") - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=29) < left <= datetime.timedelta(days=30)
    assert f"EARL_TLS_CERT={there}/server.pem EARL_TLS_KEY={there}/server.key" in said
    assert f"EARL_TLS_CA={there}/ca.pem" in said and f"{ends(there / 'ca.pem'):%Y-%m-%d}" in said
    assert "in 29 days" in told("show", there)
    before = (there / "ca.pem").read_bytes()
    with pytest.raises(errors.ConfigError, match=r"ca\.pem, ca\.key, server\.pem, .* already.*--force"):
        told("new", there, "--host", "a")
    assert (there / "ca.pem").read_bytes() == before
    told("new", there, "--host", "a", "--force")
    assert (there / "ca.pem").read_bytes() != before


def test_a_server_certificate_ends_with_its_authority(tmp_path):
    made = make(tmp_path, [], days=90, authority_days=10)
    assert made.server_ends == made.authority_ends and made.names == LOCAL


@pytest.mark.parametrize("name", ["", "a b", "-a", "a..b", "a_b", "*", "1.2.3.4/8", "a" * 64, "host:80"])
def test_names_that_are_none(name):
    with pytest.raises(errors.ConfigError, match="no DNS name and no IP address"):
        alternative(name)


def named(path):
    """The DNS names of a certificate."""
    found = x509.load_pem_x509_certificate(path.read_bytes()).extensions
    return found.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)


def test_a_server_may_have_a_key_that_is_nobody_elses(tmp_path):
    told("new", tmp_path, "--host", "scheduler")
    told("add", tmp_path, "dashboard")
    told("add", tmp_path, "page", "--host", "page.example.org")
    assert (tmp_path / "dashboard.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "dashboard.key").read_bytes() != (tmp_path / "server.key").read_bytes()
    with pytest.raises(errors.ConfigError, match=r"has dashboard\.pem and dashboard\.key already"):
        told("add", tmp_path, "dashboard")
    for name in ("ca", "server", "../x", ""):
        with pytest.raises(errors.ConfigError, match="no name of one server's files"):
            told("add", tmp_path, name)
    own = make(tmp_path / "others", ["site.example.org"], days=2, authority_days=2)
    for suffix in ("pem", "key"):
        (tmp_path / f"site.{suffix}").write_bytes(own.path(f"server.{suffix}").read_bytes())
    made = ("server", "dashboard", "page")
    before = {name: (tmp_path / f"{name}.pem").read_bytes() for name in (*made, "site")}
    for suffix in ("pem", "key"):
        (tmp_path / f"server-old.{suffix}").write_bytes((tmp_path / f"server.{suffix}").read_bytes())
    said = told("renew", tmp_path, "--host", "gateway", "--days", "30")
    assert "site" not in said and "site" not in told("show", tmp_path)
    assert "server-old" not in said and (tmp_path / "server-old.pem").read_bytes() == before["server"]
    assert named(tmp_path / "server.pem") == ["scheduler", "localhost", "gateway"]
    assert named(tmp_path / "dashboard.pem") == ["localhost"]
    assert named(tmp_path / "page.pem") == ["page.example.org", "localhost"]
    told("new", tmp_path, "--host", "scheduler", "--force")
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    for name in made:
        now = (tmp_path / f"{name}.pem").read_bytes()
        assert now != before[name] and f"{name}.pem expires" in told("show", tmp_path)
        x509.load_pem_x509_certificate(now).verify_directly_issued_by(authority)
    assert named(tmp_path / "page.pem") == ["page.example.org", "localhost"]
    assert (tmp_path / "site.pem").read_bytes() == before["site"]


def test_a_servers_own_certificate_outlives_the_authority_that_it_was_of(tmp_path):
    told("new", tmp_path, "--host", "scheduler")
    told("add", tmp_path, "dashboard")
    for name in ("ca.pem", "ca.key", "server.pem", "server.key"):
        (tmp_path / name).unlink()
    told("new", tmp_path, "--host", "scheduler")
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    x509.load_pem_x509_certificate((tmp_path / "dashboard.pem").read_bytes()).verify_directly_issued_by(
        authority
    )
    (tmp_path / "dashboard.pem").unlink()
    with pytest.raises(errors.ConfigError, match=r"has dashboard\.key already.*remove dashboard\.key"):
        told("add", tmp_path, "dashboard")


def test_a_file_that_is_no_certificate(tmp_path):
    (tmp_path / "server.pem").write_text("no")
    for where in (tmp_path, tmp_path / "none"):
        with pytest.raises(errors.ConfigError, match="is no certificate"):
            told("show", where)


class Empty(env_pb2_grpc.EnvGatewayServiceServicer):
    async def ListEnvironments(self, request, context):
        return env_pb2.ListEnvironmentsResponse()


async def test_whom_this_machine_trusts(tmp_path, monkeypatch):
    made = make(tmp_path / "tls", [], days=2, authority_days=2)
    token = make_token(Role.OPERATOR).token
    server = Server(
        "test", "127.0.0.1:0", tokens=token, tls=TlsFiles(made.path("server.pem"), made.path("server.key"))
    )
    add = env_pb2_grpc.add_EnvGatewayServiceServicer_to_server
    server.add(add, Empty(), "earl.v1.EnvGatewayService")
    address = await server.start()
    for name in ("EARL_TLS_CERT", "EARL_TLS_KEY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EARL_TLS_CA", "system")

    async def call(retry_s=None):
        files = TlsFiles.from_environment()
        assert files == TlsFiles()
        client = Client(address, env_pb2_grpc.EnvGatewayServiceStub, token=token, tls=files)
        try:
            request = env_pb2.ListEnvironmentsRequest()
            await client.call("ListEnvironments", request, deadline_s=20, retry_s=retry_s)
        finally:
            await client.close()

    monkeypatch.setenv(
        "SSL_CERT_FILE", str(make(tmp_path / "others", [], days=2, authority_days=2).path("ca.pem"))
    )
    with pytest.raises(errors.ServiceUnavailable):
        await call(retry_s=0.5)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.path("ca.pem")))
    await call()
    # As OpenSSL has them in a directory; and nowhere.
    hashed = tmp_path / "hashed"
    hashed.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(hashed))
    with pytest.raises(errors.ConfigError, match=r"no certificate authorities in .*EARL_TLS_CA"):
        await call(retry_s=0.5)
    (hashed / "0123abcd.0").write_bytes(made.path("ca.pem").read_bytes())
    await call()
    await server.stop()


async def test_off_loopback_with_them_and_not_without(tmp_path):
    right, wrong = (make(tmp_path / name, [], days=2, authority_days=2) for name in ("right", "wrong"))
    token = make_token(Role.OPERATOR).token
    tls = TlsFiles(right.path("server.pem"), right.path("server.key"))
    for tokens, files, words in ((token, None, "without TLS"), ("", tls, "without a token")):
        with pytest.raises(errors.InsecureBind, match=words):
            Server("test", "0.0.0.0:0", tokens=tokens, tls=files)
    server = Server("test", "0.0.0.0:0", tokens=token, tls=tls)
    add = env_pb2_grpc.add_EnvGatewayServiceServicer_to_server
    server.add(add, Empty(), "earl.v1.EnvGatewayService")
    port = (await server.start()).rpartition(":")[2]

    async def call(host, authority, retry_s=None):
        files = TlsFiles(authority=authority)
        client = Client(f"{host}:{port}", env_pb2_grpc.EnvGatewayServiceStub, token=token, tls=files)
        try:
            request = env_pb2.ListEnvironmentsRequest()
            await client.call("ListEnvironments", request, deadline_s=20, retry_s=retry_s)
        finally:
            await client.close()

    for host in ("127.0.0.1", "localhost"):
        await call(host, right.path("ca.pem"))
    with pytest.raises(errors.ServiceUnavailable, match=r"(?i)certificate|handshake|ssl"):
        await call("127.0.0.1", wrong.path("ca.pem"), retry_s=0.5)
    with pytest.raises(errors.ServiceUnavailable):  # a name that the certificate does not have
        await call("127.0.0.2", right.path("ca.pem"), retry_s=0.3)
    await server.stop()
