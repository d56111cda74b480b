"""An env host: serves environments over one stream with a gateway, which it dials or which dials it.

    EnvHost("127.0.0.1:7000", [MyEnvironment], capacity=64).run(stop)
    EnvHost(environments=[MyEnvironment], listen="127.0.0.1:7001").run(stop)

    connect ─► Hello(instance, epoch) ─► Welcome ─► Reset/Step/Close… ─► Result…       (host_stream.py)
       ▲                                                │ stream lost: same instance, epoch + 1
       └────────────────────────────────────────────────┘
    stop set ─► Drain ─► episodes end, within drain_s ─► stream ended ─► return

Sessions outlive the stream (runner.py): after a reconnect the gateway says which it still holds and
repeats what was in flight. One gateway at a time: to a host that listens, the newest one.
`python -m earl.env.host --run FILE` serves what the run file's environment.serve names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from earl.env import codec
from earl.env.frames import Frames
from earl.env.host_stream import LAST_WORDS_S, HostStream
from earl.env.runner import SessionRunner
from earl.env.serve import as_mapping
from earl.errors import (
    ConfigError,
    DeadlineExceeded,
    EarlError,
    EnvProtocolError,
    PermissionDenied,
    ServiceUnavailable,
    Unauthenticated,
)
from earl.rpc.auth import TlsFiles
from earl.rpc.client import Client
from earl.rpc.errors import from_call
from earl.rpc.server import Server
from earl.rpc.tokens import AcceptedTokens, Token, current
from earl.v1 import env_pb2, env_pb2_grpc
from earl.waiting import cancellable

log = logging.getLogger(__name__)

SERVICE = "earl.v1.EnvHostService"
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 3.0
# Without a gateway for this long a host that dials ends instead of waiting forever, and one that
# listens drops its sessions.
GIVE_UP_S = 60.0
# What reconnecting cannot repair.
_FATAL = (EnvProtocolError, Unauthenticated, PermissionDenied, ConfigError)


class EnvHost:
    """Serves environments through a gateway until told to stop.

    gateway: "host:port" to dial; or listen: "host:port" where a gateway dials, port 0 for any free one
    (then `address`, once ready, says which). environments: a mapping of names to factories, one
    Environment class, or several. capacity: sessions open at once. isolation: "thread" or "process" for
    all environments, instead of what each says of itself. token: what is sent to the gateway, and what
    a gateway that dials must send, unless `accepts` says whose tokens are good then. Raises
    DuplicateEnvironment and ConfigError at once.
    """

    def __init__(
        self,
        gateway: str = "",
        environments: Any = (),
        capacity: int = 64,
        *,
        listen: str = "",
        name: str = "env-host",
        token: Token = "",
        tls: TlsFiles | None = None,
        drain_s: float = 10.0,
        give_up_s: float = GIVE_UP_S,
        isolation: str = "",
        accepts: AcceptedTokens | None = None,
    ) -> None:
        if bool(gateway) == bool(listen):
            given = f"gateway {gateway!r} and listen {listen!r}" if gateway else "neither gateway nor listen"
            raise ConfigError(f"env host {name!r} is given {given}", "give one of them")
        self.address = ""
        self._environments = as_mapping(environments)
        self._gateway = gateway
        self._listen = listen
        self._capacity = capacity
        self._name = name
        self._token = token
        self._accepts = accepts
        # With the stream that is open, or was last: a token file may have another by now.
        self._sent = ""
        self._tls = tls
        self._drain_s = drain_s
        self._give_up_s = give_up_s
        self._isolation = isolation
        self._instance = secrets.randbits(63) | 1
        self._epoch = 0
        # The newest one; None before the first.
        self._stream: HostStream | None = None

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] | None = None) -> None:
        """Serves until `stop` is set and the episodes have ended; `ready` is called once attached, or
        listening.

        Raises EnvProtocolError, DuplicateEnvironment or Unauthenticated if the gateway refuses this
        host, ServiceUnavailable if there is no gateway for give_up_s; PortInUse and InsecureBind if
        it cannot listen.
        """
        runner = SessionRunner(self._environments, self._capacity, self._say, isolation=self._isolation)
        try:
            if self._listen:
                await self._serve_there(runner, stop, ready)
            else:
                await self._dial(runner, stop, ready)
        finally:
            runner.close()
            await runner.wait_closed(LAST_WORDS_S)

    def _say(self, message: env_pb2.HostMessage) -> None:
        if self._stream is not None:
            self._stream.outbox.put(message)

    def _next_stream(
        self, frames: Frames, peer: str, runner: SessionRunner
    ) -> tuple[HostStream, env_pb2.Hello]:
        """A stream of the next epoch, which the sessions speak to from now on."""
        self._epoch += 1
        self._stream = HostStream(frames, peer, runner)
        hello = env_pb2.Hello(
            protocol=codec.PROTOCOL,
            host=self._name,
            instance=self._instance,
            epoch=self._epoch,
            environments=[codec.info(name, described) for name, described in runner.infos.items()],
            capacity=runner.offered,
        )
        return self._stream, hello

    # --- a host that dials -------------------------------------------------------------------

    async def _dial(
        self, runner: SessionRunner, stop: asyncio.Event, ready: Callable[[], None] | None
    ) -> None:
        """Keeps a stream to the gateway until `stop`."""
        client = Client(self._gateway, env_pb2_grpc.EnvGatewayServiceStub, token=self._token, tls=self._tls)
        loop = asyncio.get_running_loop()
        last_seen_s, backoff_s = loop.time(), FIRST_BACKOFF_S
        try:
            while not stop.is_set():
                self._sent = current(self._token)
                call = client.stream("Attach", deadline_s=None)
                frames = Frames(call, env_pb2.AttachRequest)
                stream, hello = self._next_stream(frames, f"the gateway at {self._gateway}", runner)
                error = await self._attempt(call, stream, hello, stop, ready)
                if error is None:
                    return
                if stream.last_seen_s:
                    ready, last_seen_s, backoff_s = None, stream.last_seen_s, FIRST_BACKOFF_S
                if loop.time() - last_seen_s > self._give_up_s:
                    raise ServiceUnavailable(
                        f"no gateway at {self._gateway} for {self._give_up_s:g} s: {error.message}",
                        "start it, or correct the address",
                    )
                log.warning("stream to %s lost, trying again: %s", self._gateway, error)
                await _pause(stop, backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        finally:
            await client.close()

    async def _attempt(
        self,
        call: Any,
        stream: HostStream,
        hello: env_pb2.Hello,
        stop: asyncio.Event,
        ready: Callable[[], None] | None,
    ) -> EarlError | None:
        """One stream from Hello to its end; None if it ended because of `stop`."""
        try:
            with cancellable():
                return await stream.serve(
                    hello, stop, drain_s=self._drain_s, done_writing=call.done_writing, ready=ready
                )
        except grpc.aio.AioRpcError as error:
            typed = from_call(error, f"Attach at {self._gateway}")
            rotated = isinstance(typed, Unauthenticated) and current(self._token) != self._sent
            if isinstance(typed, _FATAL) and not rotated:
                raise typed from error
            return typed
        except (ServiceUnavailable, DeadlineExceeded) as error:
            return error
        finally:
            stream.outbox.close()
            call.cancel()

    # --- a host that listens -----------------------------------------------------------------

    async def _serve_there(
        self, runner: SessionRunner, stop: asyncio.Event, ready: Callable[[], None] | None
    ) -> None:
        """Lets gateways dial until `stop`."""

        async def serve(context: Any) -> None:
            former = self._stream
            frames = Frames(context, env_pb2.ServeResponse)
            stream, hello = self._next_stream(frames, f"the gateway at {context.peer()}", runner)
            if former is not None:
                former.outbox.close(EnvProtocolError(f"a newer stream of a gateway took {self._name} over"))
            error = await stream.serve(hello, stop, drain_s=self._drain_s)
            if error is not None:
                log.info("stream lost: %s", error)

        servicer = _Listening(serve, lambda: runner.keep(()), self._give_up_s)
        tokens = self._accepts or current(self._token)
        server = Server(self._name, self._listen, tokens=tokens, tls=self._tls, drain_s=1.0)
        server.add(env_pb2_grpc.add_EnvHostServiceServicer_to_server, servicer, SERVICE)
        self.address = await server.start()
        try:
            if ready is not None:
                ready()
            await stop.wait()
            await servicer.stop(self._drain_s + 2 * LAST_WORDS_S)
        finally:
            await server.stop()


class _Listening(env_pb2_grpc.EnvHostServiceServicer):
    """earl.v1.EnvHostService. serve: handles one stream of a gateway, until `stop` ends it too.

    forget: called when no stream was open for forget_s, for what no gateway will ask for again.
    """

    def __init__(
        self, serve: Callable[[Any], Awaitable[None]], forget: Callable[[], None], forget_s: float
    ) -> None:
        self._serve = serve
        self._forget = forget
        self._forget_s = forget_s
        self._forgetting: asyncio.TimerHandle | None = None
        self._streams = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False

    async def Serve(self, request_iterator: Any, context: Any) -> None:
        """Serves the stream of a gateway."""
        if self._stopping:
            raise ServiceUnavailable("this host is stopping", "dial another one")
        self._remember()
        self._streams += 1
        self._idle.clear()
        try:
            await self._serve(context)
        finally:
            self._streams -= 1
            if self._streams == 0:
                self._idle.set()
                loop = asyncio.get_running_loop()
                self._forgetting = loop.call_later(self._forget_s, self._forget)

    def _remember(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()

    async def stop(self, within_s: float) -> None:
        """Takes no new stream, and waits at most `within_s` for the open ones."""
        self._stopping = True
        try:
            async with asyncio.timeout(within_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("stopping with %d streams open", self._streams)
        self._remember()


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait, but not past `stop`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


def main() -> None:
    """`python -m earl.env.host --run FILE [--name NAME]`; the gateway is EARL_GATEWAY."""
    import argparse
    import os
    from contextlib import suppress
    from pathlib import Path

    from earl.config.mixture import host_plan
    from earl.config.service import read_run, service_run
    from earl.env.serve import load
    from earl.obs.log import setup
    from earl.obs.tracing import exporting
    from earl.rpc.access import Access
    from earl.rpc.main import announce, await_peers, run
    from earl.rpc.token_file import Role

    parser = argparse.ArgumentParser(prog="python -m earl.env.host")
    parser.add_argument("--run", type=Path, required=True, help="run file, or a run.json")
    parser.add_argument("--name", default="env-host")
    parser.add_argument(
        "--serve", default="", help="which serve of the run file, if its environments have several"
    )
    arguments = parser.parse_args()
    setup(arguments.name)
    with suppress(EarlError):
        # Its imports, while others start; what is wrong with it is said below.
        load(host_plan(read_run(arguments.run).mixture, arguments.serve).serve)
    await_peers()

    async def serve(stop: asyncio.Event) -> None:
        config, _ = service_run(arguments.run)
        plan = host_plan(config.mixture, arguments.serve)
        environments = load(plan.serve)
        gateway = os.environ.get("EARL_GATEWAY", "")
        if not gateway:
            raise ConfigError("EARL_GATEWAY is not set", "set it to the gateway's host:port")
        for name in plan.names:
            if name not in environments:
                raise ConfigError(
                    f"environment.name {name!r} is not served by {plan.serve!r}",
                    f"it serves {', '.join(sorted(environments))}",
                )
        access = Access.of(Role.ENVIRONMENT)
        host = EnvHost(
            gateway,
            environments,
            plan.sessions,
            name=arguments.name,
            token=access.token,
            tls=access.tls,
        )
        with exporting(config.obs.traces, arguments.name, config.name):
            await host.run(stop, ready=lambda: announce(arguments.name, gateway))

    run(serve)


if __name__ == "__main__":
    main()
