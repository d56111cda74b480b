"""A bus on another machine: never without a password, a word without TLS, and TLS that is real."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from earl.bus import Bus, EmbeddedValkey
from earl.bus.exposure import exposure_text
from earl.errors import BusUnavailable, ConfigError
from tests.support.certificates import certified


@pytest.mark.parametrize(
    "url", ["redis://10.0.0.1:6379", "rediss://redis.example.org", "redis://10.0.0.1/0?db=1"]
)
def test_another_machine_needs_a_password(url):
    with pytest.raises(ConfigError, match="is given no password; set one there"):
        exposure_text(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://:p@10.0.0.1:6379", "without TLS"),
        ("redis://10.0.0.1:6379?password=p", "without TLS"),
        ("rediss://:p@10.0.0.1:6379", ""),
        ("redis://127.0.0.1:6379", ""),
        ("redis://localhost", ""),
        ("unix:///run/valkey.sock", ""),
    ],
)
def test_what_others_may_see_is_said(url, words):
    assert (words in exposure_text(url)) if words else exposure_text(url) == ""


async def test_it_is_asked_for_before_anything_is_sent():
    with pytest.raises(ConfigError, match="no password"):
        await Bus.connect("redis://10.0.0.1:6379", "r")


@asynccontextmanager
async def tls_before(socket: str, certificate: str, key: str):
    """A TLS server that passes on to a unix socket: its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(socket)
        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_the_bus_over_tls(tmp_path):
    right, wrong = certified(tmp_path / "right"), certified(tmp_path / "wrong")
    valkey = EmbeddedValkey()
    own = urlsplit(await valkey.start(tmp_path / "valkey"))
    try:
        async with tls_before(own.path, str(right.certificate), str(right.key)) as port:
            url = f"rediss://:{own.password}@localhost:{port}"
            bus = await Bus.connect(f"{url}?ssl_ca_certs={right.authority}", "r")
            assert await bus.last_id()
            await bus.close()
            with pytest.raises(BusUnavailable) as caught:
                await Bus.connect(f"{url}?ssl_ca_certs={wrong.authority}", "r")
            assert str(own.password) not in str(caught.value)
    finally:
        await valkey.stop()
