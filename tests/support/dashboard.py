"""Parts of the dashboard under a test's control."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from earl.config.run import RunConfig
from earl.dashboard.codec_services import Services
from earl.dashboard.serve import serve
from earl.errors import ServiceUnavailable
from earl.stack.status import RunStatus


def config_of(directory: Path) -> RunConfig:
    return RunConfig.model_validate_json((directory / "run.json").read_bytes())


class Silent(Services):
    """Services of a run whose processes are gone."""

    def __init__(self) -> None:
        self.scheduler = "127.0.0.1:1"

    async def status(self, deadline_s: float) -> RunStatus:
        raise ServiceUnavailable("GetStatus at 127.0.0.1:1 cannot be reached", "start it")

    async def gateway(self, deadline_s: float) -> dict[str, Any]:
        raise ServiceUnavailable("ListEnvironments at 127.0.0.1:2 cannot be reached", "start it")

    async def tickets(self, deadline_s: float) -> dict[str, Any]:
        raise ServiceUnavailable("ListTickets at 127.0.0.1:1 cannot be reached", "start it")

    async def close(self) -> None:
        pass


class Says(Silent):
    """Services of a running run that report this. fleet: the gateway's answer."""

    def __init__(self, status: RunStatus) -> None:
        super().__init__()
        self.said: RunStatus | None = status
        self.fleet: dict[str, Any] = {"environments": [], "rows": [], "waiting": []}

    async def status(self, deadline_s: float) -> RunStatus:
        if self.said is None:
            return await super().status(deadline_s)
        return self.said

    async def gateway(self, deadline_s: float) -> dict[str, Any]:
        return self.fleet

    async def tickets(self, deadline_s: float) -> dict[str, Any]:
        return {"rows": []}


class Served:
    """A dashboard of a directory in this process. links: all that it gave."""

    def __init__(self, directory: Path, bind: str = "127.0.0.1:0") -> None:
        self.links: list[str] = []
        self._directory = directory
        self._bind = bind
        self._stop = asyncio.Event()

    @property
    def address(self) -> str:
        return urlsplit(self.links[0]).netloc

    async def __aenter__(self) -> Served:
        ready = asyncio.Event()
        self._task = asyncio.create_task(
            serve(
                self._directory,
                config_of(self._directory),
                bind=self._bind,
                stop=self._stop,
                on_link=self.links.append,
                on_ready=lambda address: ready.set(),
            )
        )
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([self._task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            self._task.result()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.wait_for(self._task, 10.0)

    async def ask(self, path: str, *headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of its own that asks for this."""
        reader, writer = await self.connect()
        lines = [f"GET {path} HTTP/1.1", f"Host: {self.address}", *headers]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        return reader, writer

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that asks nothing."""
        host, _, port = self.address.partition(":")
        return await asyncio.open_connection(host, int(port))

    async def enter(self) -> tuple[str, str]:
        """The answer to the newest link, and the Cookie header of whoever opened it."""
        reader, writer = await self.ask(f"/?{urlsplit(self.links[-1]).query}", "Connection: close")
        answer = (await reader.read()).decode()
        writer.close()
        cookie = answer.partition("set-cookie: ")[2].partition(";")[0]
        return answer, f"Cookie: {cookie}"
