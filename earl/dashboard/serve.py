"""One dashboard server: for a run of the local stack, or for a directory that somebody names."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import uvicorn

from earl.config.run import RunConfig
from earl.dashboard.app import application
from earl.dashboard.codec_services import Services
from earl.dashboard.connection import IdleClosingConnection
from earl.dashboard.door import Door, key_of
from earl.dashboard.runs import RunFolder
from earl.errors import PortInUse
from earl.expendable import ExpendableFile
from earl.loopback import is_loopback
from earl.rpc import auth
from earl.rpc.access import Access
from earl.rpc.peers import advertised_address, variable_or_file
from earl.rpc.token_file import READERS
from earl.rpc.tokens import tokens_to_accept
from earl.stack.run_files import DASHBOARD_LINK, replace
from earl.waiting import until_first

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
# Requests at once, streams included; connections too, of which those without a request are closed first.
REQUESTS = 256
STOP_S = 3.0

OnLink = Callable[[str], None]


async def serve(
    directory: Path,
    config: RunConfig,
    *,
    bind: str,
    stop: asyncio.Event,
    on_link: OnLink,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serves until `stop`. on_link: called with every new link; on_ready: with host:port once it listens.

    Raises InsecureBind off loopback without TLS and token, PortInUse, ConfigError.
    """
    access = Access.of(*READERS)
    secure = access.tls is not None and access.tls.certificate is not None
    tls = access.tls if secure else None
    auth.check_bind(bind, tokens_to_accept(), tls)

    def services_of(run: Path, of: RunConfig) -> Services:
        if run != directory:
            return Services(of.scheduler.bind, of.gateway.bind, access)
        scheduler = variable_or_file("EARL_SCHEDULER") or config.scheduler.bind
        return Services(scheduler, variable_or_file("EARL_GATEWAY") or config.gateway.bind, access)

    folder = RunFolder(directory.parent, services_of)
    with listening(bind) as listener:
        address = shown_address(bind, listener)
        scheme = "https" if secure else "http"
        door = Door(
            key_of(directory), lambda token: on_link(f"{scheme}://{address}/?token={token}"), secure=secure
        )
        app = application(door, hosts_of(bind), folder, directory.name)
        async with serving(app, listener, tls, folder.end_streams):
            try:
                on_ready(address)
                await stop.wait()
            finally:
                await folder.close()


class _Server(uvicorn.Server):
    """Signals are the process's own affair. listens: set once it does."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(
    app: object, listener: socket.socket, tls: auth.TlsFiles | None, end_streams: Callable[[], None]
) -> AsyncIterator[None]:
    """HTTP/1.1 on the listener. end_streams: called at the end, before the server stops."""
    context = tls.server_certificate().context() if tls else None
    server = _Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            log_config=None,
            # A link's token is part of a request's line.
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            http=IdleClosingConnection,
            limit_concurrency=REQUESTS,
            h11_max_incomplete_event_size=16 << 10,
            timeout_graceful_shutdown=1,
            ssl_context_factory=(lambda *_: context) if context else None,
        )
    )
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until_first(task, server.listens.wait())
        if task.done():
            task.result()
        yield
    finally:
        end_streams()
        server.should_exit = True
        await asyncio.wait([task], timeout=STOP_S)


@contextlib.contextmanager
def listening(bind: str) -> Iterator[socket.socket]:
    """A socket that listens there. Raises PortInUse, ConfigError."""
    host, port = auth.split_address(bind)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise PortInUse(
            f"the dashboard cannot listen at {bind}: {os.strerror(error.errno or 0).lower()}",
            f"free the port, or set dashboard.bind (of earl dashboard, --bind) to {host}:0 for any free one",
        ) from None
    with listener:
        yield listener


def shown_address(bind: str, listener: socket.socket) -> str:
    """The host:port at which others reach the server."""
    host, _ = auth.split_address(bind)
    port = listener.getsockname()[1]
    bound = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return bound if is_loopback(host) else advertised_address(bound, keep_port=True)


def hosts_of(bind: str) -> frozenset[str]:
    """Names under which a browser may call a server that is bound there."""
    host, _ = auth.split_address(bind)
    if is_loopback(host):
        return LOOPBACK
    named = {host, socket.gethostname(), auth.split_address(advertised_address(bind, keep_port=True))[0]}
    return LOOPBACK | {name.lower() for name in named}


def keep_link(directory: Path) -> OnLink:
    """Writes each new link into the run's directory, where only this user can read it. Where the disk is
    full, browsers that have used a link keep their access."""
    path = directory / DASHBOARD_LINK
    expendable = ExpendableFile(path)

    def keep(link: str) -> None:
        with expendable.written():
            replace(path, link + "\n")

    return keep


def forget_link(directory: Path) -> None:
    (directory / DASHBOARD_LINK).unlink(missing_ok=True)
