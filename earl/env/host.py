"""An env host: dials the gateway and serves environments over one stream.

    EnvHost("127.0.0.1:7000", [MyEnvironment], capacity=64).run(stop)

    connect ─► Hello(instance, epoch) ─► Welcome ─► Reset/Step/Close… ─► Result…   (runner.py)
       ▲                                                │ stream lost: same instance, epoch + 1
       └────────────────────────────────────────────────┘
    stop set ─► Drain ─► episodes end, within drain_s ─► stream closed ─► return

Sessions outlive the stream: after a reconnect the gateway says which it still holds and repeats what
was in flight. `python -m earl.env.host --run run.json` serves what the run file's environment.serve names.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable
from typing import Any

import grpc

from earl.env import codec
from earl.env.runner import Runner
from earl.env.serve import as_mapping
from earl.errors import (
    ConfigError,
    DeadlineExceeded,
    EarlError,
    EnvironmentFailure,
    EnvProtocolError,
    ServiceUnavailable,
    Unauthenticated,
)
from earl.rpc.auth import TlsFiles
from earl.rpc.client import EOF, Client
from earl.rpc.errors import from_call
from earl.rpc.outbox import Outbox
from earl.v1 import env_pb2, env_pb2_grpc

log = logging.getLogger(__name__)

WELCOME_S = 10.0
LAST_WORDS_S = 2.0
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 3.0
# Without a gateway for this long a host ends instead of waiting for ever.
GIVE_UP_S = 60.0
# What reconnecting cannot mend.
_FATAL = (EnvironmentFailure, Unauthenticated, ConfigError)


class EnvHost:
    """Serves environments through a gateway until told to stop.

    gateway: "host:port". environments: a mapping of names to factories, one Environment class, or
    several. capacity: sessions open at once. Raises DuplicateEnvironment and ConfigError at once.
    """

    def __init__(
        self,
        gateway: str,
        environments: Any,
        capacity: int = 64,
        *,
        name: str = "env-host",
        token: str = "",
        tls: TlsFiles | None = None,
        drain_s: float = 10.0,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._environments = as_mapping(environments)
        self._gateway = gateway
        self._capacity = capacity
        self._name = name
        self._token = token
        self._tls = tls
        self._drain_s = drain_s
        self._give_up_s = give_up_s
        self._instance = secrets.randbits(63) | 1
        self._epoch = 0
        self._heard = 0.0
        self._outbox = Outbox()

    async def run(self, stop: asyncio.Event, ready: Callable[[], None] | None = None) -> None:
        """Serve until `stop` is set and the episodes have ended; `ready` is called once attached.

        Raises EnvProtocolError, DuplicateEnvironment or Unauthenticated if the gateway refuses this
        host, ServiceUnavailable if there is no gateway for give_up_s.
        """
        runner = Runner(self._environments, self._capacity, lambda message: self._outbox.put(message))
        client = Client(self._gateway, env_pb2_grpc.EnvGatewayServiceStub, token=self._token, tls=self._tls)
        self._heard = time.monotonic()
        backoff_s = FIRST_BACKOFF_S
        try:
            while not stop.is_set():
                heard = self._heard
                error = await self._attempt(client, runner, stop, ready)
                if error is None:
                    return
                if self._heard > heard:
                    ready, backoff_s = None, FIRST_BACKOFF_S
                if time.monotonic() - self._heard > self._give_up_s:
                    raise ServiceUnavailable(
                        f"no gateway at {self._gateway} for {self._give_up_s:g} s: {error.message}",
                        "start it, or correct the address",
                    )
                log.warning("stream to %s lost, trying again: %s", self._gateway, error)
                await _pause(stop, backoff_s * random.uniform(0.5, 1.0))
                backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)
        finally:
            runner.close()
            await client.close()

    async def _attempt(
        self, client: Client, runner: Runner, stop: asyncio.Event, ready: Callable[[], None] | None
    ) -> EarlError | None:
        """One stream from Hello to its end; None if it ended because of `stop`."""
        self._epoch += 1
        self._outbox = Outbox()
        call = client.stream("Attach", deadline_s=None)
        try:
            return await self._serve(call, runner, stop, ready)
        except grpc.aio.AioRpcError as error:
            typed = from_call(error, f"Attach at {self._gateway}")
            if isinstance(typed, _FATAL):
                raise typed from error
            return typed
        except (ServiceUnavailable, DeadlineExceeded) as error:
            return error
        finally:
            self._outbox.close()
            call.cancel()

    async def _serve(
        self, call: Any, runner: Runner, stop: asyncio.Event, ready: Callable[[], None] | None
    ) -> EarlError | None:
        await call.write(env_pb2.AttachRequest(messages=[self._hello(runner)]))
        lease_s = await self._welcomed(call, runner)
        if ready is not None:
            ready()
        outbox = self._outbox
        stopping = asyncio.create_task(stop.wait())
        tasks = [
            asyncio.create_task(self._read(call, runner, lease_s)),
            asyncio.create_task(outbox.drain_to_call(call, env_pb2.AttachRequest)),
        ]
        try:
            done, _ = await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if stopping in done:
                await self._drain(call, runner, tasks)
                return None
            await asyncio.wait({tasks[0]}, timeout=LAST_WORDS_S)  # the reader knows best why it ended
            for task in tasks:
                if task.done():
                    task.result()
            return ServiceUnavailable("the gateway ended the stream")
        finally:
            for task in (stopping, *tasks):
                task.cancel()
            await asyncio.wait({stopping, *tasks})
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # the first one was reported; the others follow from it

    def _hello(self, runner: Runner) -> env_pb2.HostMessage:
        hello = env_pb2.Hello(
            protocol=codec.PROTOCOL,
            host=self._name,
            instance=self._instance,
            epoch=self._epoch,
            environments=[codec.info(name, described) for name, described in runner.infos.items()],
            capacity=runner.offered,
        )
        return env_pb2.HostMessage(hello=hello)

    async def _welcomed(self, call: Any, runner: Runner) -> float:
        """Wait for Welcome; returns the lease in seconds."""
        try:
            async with asyncio.timeout(WELCOME_S):
                response = await call.read()
        except TimeoutError:
            raise DeadlineExceeded(f"no Welcome from {self._gateway} within {WELCOME_S:g} s") from None
        if response is EOF:
            raise ServiceUnavailable(f"the gateway at {self._gateway} ended the stream before Welcome")
        if not response.messages or response.messages[0].WhichOneof("message") != "welcome":
            raise EnvProtocolError(
                f"first answer of {self._gateway} is not Welcome", "is it an EARL gateway?"
            )
        welcome = response.messages[0].welcome
        if welcome.protocol != codec.PROTOCOL:
            raise EnvProtocolError(f"gateway speaks protocol {welcome.protocol}, this host {codec.PROTOCOL}")
        self._heard = time.monotonic()
        runner.max_text_bytes = welcome.max_text_bytes
        runner.keep(set(welcome.sessions))
        for message in response.messages[1:]:
            self._handle(message, runner)
        log.info("attached to %s", self._gateway, extra={"fields": {"epoch": self._epoch}})
        return welcome.lease_s

    async def _read(self, call: Any, runner: Runner, lease_s: float) -> None:
        """Handle messages until the stream ends. A gateway that no longer pings counts as gone."""
        bound_s = max(3 * lease_s, 1.0)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(bound_s) as silence:
                while (response := await call.read()) is not EOF:
                    silence.reschedule(loop.time() + bound_s)
                    self._heard = time.monotonic()
                    for message in response.messages:
                        self._handle(message, runner)
        except TimeoutError:
            raise ServiceUnavailable(f"{self._gateway} was silent for {bound_s:g} s") from None

    def _handle(self, message: env_pb2.GatewayMessage, runner: Runner) -> None:
        kind = message.WhichOneof("message")
        if kind == "step":
            runner.step(message.step)
        elif kind == "reset":
            runner.reset(message.reset)
        elif kind == "close":
            runner.drop(message.close.session)
        elif kind == "cancel":
            runner.drop(message.cancel.session)
        elif kind == "ping":
            pong = env_pb2.Pong(nonce=message.ping.nonce)
            self._outbox.put(env_pb2.HostMessage(pong=pong))
        elif kind == "drain":
            log.info("the gateway drains: %s", message.drain.reason)

    async def _drain(self, call: Any, runner: Runner, tasks: list[asyncio.Task[None]]) -> None:
        log.info("draining %d episodes", runner.open_sessions)
        drain = env_pb2.Drain(grace_s=self._drain_s, reason="the host stops")
        self._outbox.put(env_pb2.HostMessage(drain=drain))
        emptied = asyncio.create_task(runner.wait_empty())
        await asyncio.wait({emptied, *tasks}, timeout=self._drain_s, return_when=asyncio.FIRST_COMPLETED)
        emptied.cancel()
        self._outbox.close()
        reader, writer = tasks
        await asyncio.wait({writer}, timeout=LAST_WORDS_S)
        if writer.done() and not reader.done():
            await call.done_writing()
            await asyncio.wait({reader}, timeout=LAST_WORDS_S)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait, but not past `stop`."""
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


def main() -> None:
    """`python -m earl.env.host --run run.json [--name NAME]`; the gateway is EARL_GATEWAY."""
    import argparse
    import os
    from pathlib import Path

    from earl.config.run import RunConfig
    from earl.env.serve import load
    from earl.obs.log import setup
    from earl.rpc.main import announce, run

    parser = argparse.ArgumentParser(prog="python -m earl.env.host")
    parser.add_argument("--run", type=Path, required=True, help="the resolved run file, run.json")
    parser.add_argument("--name", default="env-host")
    arguments = parser.parse_args()
    setup(arguments.name)

    async def serve(stop: asyncio.Event) -> None:
        config = RunConfig.model_validate_json(arguments.run.read_text())
        gateway = os.environ.get("EARL_GATEWAY", "")
        if not gateway:
            raise ConfigError("EARL_GATEWAY is not set", "set it to the gateway's host:port")
        environments = load(config.environment.serve)
        if config.environment.name not in environments:
            raise ConfigError(
                f"environment.name {config.environment.name!r} is not served by {config.environment.serve!r}",
                f"it serves {', '.join(sorted(environments))}",
            )
        host = EnvHost(
            gateway,
            environments,
            config.environment.sessions_per_host,
            name=arguments.name,
            token=os.environ.get("EARL_TOKEN", ""),
            tls=TlsFiles.from_environment(),
        )
        await host.run(stop, ready=lambda: announce(arguments.name, gateway))

    run(serve)


if __name__ == "__main__":
    main()
