"""An episode that a person plays: in a host that is started for it, or at a gateway."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from earl.cli.lib.gateway_codec import CALL_S, list_environments
from earl.env import Action, Ending, GatewayClient, Limits, Observation
from earl.env.codec import observation
from earl.env.conformance.offered_tools import tools_of
from earl.env.conformance.plan import ExamPlan
from earl.env.conformance.servicer import examining
from earl.env.conformance.spawned import spawned
from earl.env.session import Session
from earl.errors import UnknownEnvironment
from earl.message_fields import from_message
from earl.rpc.access import Access
from earl.rpc.token_file import Role

# A person thinks for as long as it takes; what the environment does is bounded.
LIMITS = Limits(queue_s=30.0, reset_s=120.0, step_s=120.0, episode_s=86_400.0)


@dataclass(frozen=True, slots=True)
class Shown:
    """The player's view of one observation."""

    observation: Observation
    reward: float = 0.0
    done: bool = False
    ending: Ending = Ending.NONE
    metrics: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


class Game(Protocol):
    """A game to be played by hand. name: of the environment. tools: JSON schemas of its functions."""

    name: str
    tools: Sequence[Mapping[str, Any]]

    async def begin(self, seed: int, task: Mapping[str, Any]) -> Shown: ...

    async def act(self, action: Action) -> Shown: ...


class HostGame:
    """A game in a host process of its own, over the real protocol."""

    def __init__(self, link: Any, name: str) -> None:
        self.name = name
        self.tools: Sequence[Mapping[str, Any]] = tools_of(link.environments[name])
        self._episode = link.open(name, LIMITS.reset_s, LIMITS.step_s)

    async def begin(self, seed: int, task: Mapping[str, Any]) -> Shown:
        return _decode_shown(await self._episode.reset(seed, task))

    async def act(self, action: Action) -> Shown:
        return _decode_shown(await self._episode.step(action))


def _decode_shown(result: Any) -> Shown:
    shown = observation(result.observation)
    return from_message(Shown, result, observation=shown, ending=Ending(result.ending))


class GatewayGame:
    """A game at a gateway, on any host with free capacity."""

    def __init__(self, client: GatewayClient, name: str, tools: Sequence[Mapping[str, Any]]) -> None:
        self.name = name
        self.tools = tools
        self._client = client
        self._session: Session | None = None

    async def begin(self, seed: int, task: Mapping[str, Any]) -> Shown:
        self._session = await self._client.open(self.name, task, seed, LIMITS)
        return Shown(self._session.observation)

    async def act(self, action: Action) -> Shown:
        assert self._session is not None
        outcome = await self._session.step(action)
        return Shown(**{field.name: getattr(outcome, field.name) for field in fields(Shown)})


@asynccontextmanager
async def at_host(target: str, name: str) -> AsyncIterator[Game]:
    """Opens an environment of "module:Class"; name may be "" if it serves only one.

    Raises UnknownEnvironment.
    """
    secret = secrets.token_hex(16)
    async with (
        examining("127.0.0.1:0", secret) as examiner,
        spawned(examiner, target, secret, ExamPlan(), capacity=1) as bench,
    ):
        yield HostGame(bench.link, chosen_environment(name, list(bench.link.environments), target))


@asynccontextmanager
async def at_gateway(address: str, name: str) -> AsyncIterator[Game]:
    """Opens an environment at the gateway host:port. Raises UnknownEnvironment, ServiceUnavailable."""
    allowed = Access.of(Role.OPERATOR)
    served = {
        environment.name: environment for environment in await list_environments(address, allowed, CALL_S)
    }
    name = chosen_environment(name, list(served), f"the gateway at {address}")
    client = GatewayClient(address, token=allowed.token, tls=allowed.tls)
    try:
        yield GatewayGame(client, name, served[name].tools)
    finally:
        await client.close()


def chosen_environment(name: str, served: Sequence[str], who: str) -> str:
    """The name of the environment to play. Raises UnknownEnvironment."""
    if name in served:
        return name
    if not name and len(served) == 1:
        return served[0]
    remedy = f"name one of {', '.join(sorted(served))}" if served else "attach a host"
    raise UnknownEnvironment(
        f"{who} does not serve {name!r}" if name else f"{who} serves {len(served)}", remedy
    )
