"""A gateway with a clock that the test moves, and short ways to say things to it."""

import itertools
from typing import Any

from earl.config.environment import GatewayConfig
from earl.errors import EarlError
from earl.v1 import env_pb2
from services.env_gateway.gateway import Gateway
from services.env_gateway.state.clients import ClientStream

INTERVAL_S = 0.1
_instances = itertools.count(1)


class Box(list):
    """An outbox that keeps everything; `take` empties it."""

    closed: EarlError | bool = False

    def put(self, message):
        self.append(message)

    def close(self, error=None):
        self.closed = error or True

    def take(self, kind):
        found = [getattr(m, kind) for m in self if m.WhichOneof("message") == kind]
        self[:] = [m for m in self if m.WhichOneof("message") != kind]
        return found


class World:
    """A gateway, its clock, and short ways to say things."""

    def __init__(self, **config: Any):
        self.now = 100.0
        self.quarantined = []
        self.gateway = Gateway(
            GatewayConfig.model_validate({"lease_s": 5.0} | config),
            lambda: self.now,
            lambda *event: self.quarantined.append(event),
        )
        self.client = ClientStream(Box())

    def pass_time(self, seconds, hosts=()):
        """Sweep as the process would; `hosts` answer their pings."""
        for _ in range(round(seconds / INTERVAL_S)):
            self.now += INTERVAL_S
            for host in hosts:
                host.last_seen_s = self.now
            self.gateway.sweep(INTERVAL_S)

    def host(self, name="h", capacity=2, environments=("game",), instance=None, epoch=1):
        hello = env_pb2.Hello(
            protocol=1,
            host=name,
            instance=instance or next(_instances),
            epoch=epoch,
            capacity=capacity,
            environments=[env_pb2.EnvironmentInfo(name=e, schema_hash="s") for e in environments],
        )
        return self.gateway.attach(hello, Box())

    def open(self, number, environment="game", **fields):
        message = env_pb2.Open(session=number, environment=environment, **fields)
        self.gateway.handle_client(self.client, env_pb2.ClientMessage(open=message))

    def step(self, number, seq, text="a"):
        step = env_pb2.Step(session=number, seq=seq, action=env_pb2.Action(text=text))
        self.gateway.handle_client(self.client, env_pb2.ClientMessage(step=step))

    def close(self, number):
        self.gateway.handle_client(self.client, env_pb2.ClientMessage(close=env_pb2.Close(session=number)))

    def answer(self, host, session, seq, **fields):
        result = env_pb2.Result(session=session, seq=seq, **fields)
        self.gateway.handle_host(host, host.epoch, env_pb2.HostMessage(result=result))

    def results(self):
        return self.client.outbox.take("result")

    def started(self, host, number=1, **fields):
        """Open a session, answer its reset; returns the gateway's id of it."""
        self.open(number, **fields)
        (reset,) = host.outbox.take("reset")
        self.answer(host, reset.session, 0)
        self.results()
        return reset.session
