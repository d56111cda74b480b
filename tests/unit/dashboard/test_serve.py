"""The dashboard's server on a real socket: how it ends, and who gets a connection when there are too many."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from earl.dashboard.guard import Receive, Scope, Send
from earl.dashboard.serve import listening, serving
from tests.support.dashboard import Served
from tests.support.recorded import recorded


async def test_it_serves_over_http_and_ends_at_once_with_streams_open(tmp_path: Path):
    recorded(tmp_path, steps=2)
    async with Served(tmp_path) as served:
        reader, writer = await served.ask("/", "Connection: close")
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()
        answer, cookie = await served.enter()
        head = answer.partition("\r\n\r\n")[0].lower()
        assert head.startswith("http/1.1 200 ") and "server:" not in head
        reader, writer = await served.ask(f"/api/runs/{tmp_path.name}/stream", cookie)
        await reader.readuntil(b"event: learning\n")
    await reader.read()
    writer.close()
    assert len(served.links) == 2


async def test_connections_that_ask_nothing_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("earl.dashboard.serve.REQUESTS", 4)
    recorded(tmp_path, steps=2)
    async with Served(tmp_path) as served:
        _, cookie = await served.enter()
        stream, stays = await served.ask(f"/api/runs/{tmp_path.name}/stream", cookie)
        await stream.readuntil(b"event: learning\n")
        idle = []
        for at in range(12):
            idle.append(await served.connect())
            if at % 2:
                idle[-1][1].write(b"GET / HTTP/1.1\r\nHo")  # and not a word more
        reader, writer = await served.ask("/", cookie, "Connection: close")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionError):
            assert await idle[0][0].read() == b""
        for one in (stays, writer, *(end for _, end in idle)):
            one.close()


LARGE = b"x" * (32 << 20)


async def test_an_answer_that_is_not_taken_yet_gives_way_to_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("earl.dashboard.serve.REQUESTS", 2)
    answered = asyncio.Event()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        body = LARGE if scope["path"] == "/large" else b"small"
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})
        answered.set()

    with listening("127.0.0.1:0") as listener:
        host, port = listener.getsockname()
        async with serving(application, listener, None, lambda: None):
            slow = socket.socket()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((host, port))
            slow.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            await answered.wait()  # as far as the application knows it is over
            idle = await asyncio.open_connection(host, port)
            for _ in range(3):
                next_one = await asyncio.open_connection(host, port)
                with contextlib.suppress(ConnectionError):
                    assert await idle[0].read() == b""  # the oldest one that asks nothing
                idle[1].close()
                idle = next_one
            taken = bytearray()
            loop = asyncio.get_running_loop()
            slow.setblocking(False)
            while data := await loop.sock_recv(slow, 1 << 20):
                taken += data
            slow.close()
            idle[1].close()
    assert taken.endswith(b"\r\n\r\n" + LARGE)


async def test_what_is_answered_gives_way_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("earl.dashboard.serve.REQUESTS", 3)
    recorded(tmp_path, steps=2)
    async with Served(tmp_path) as served:
        _, cookie = await served.enter()
        streams = [await served.ask(f"/api/runs/{tmp_path.name}/stream", cookie) for _ in range(2)]
        for reader, _ in streams:
            await reader.readuntil(b"event: learning\n")
        reader, writer = await served.ask("/", cookie)
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        for _, one in (*streams, (reader, writer)):
            one.close()
