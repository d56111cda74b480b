"""Who serves what, with how much room, and who is next in the queue; pure, time is an argument.

A host is one instance of one process. Its stream may break and come back with a larger epoch: until
its lease ends the host is only detached, and its sessions live. A stream of an older epoch is fenced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from earl.errors import DuplicateEnvironment, EnvProtocolError
from services.env_gateway.quarantine import Quarantine
from services.env_gateway.sessions import Session, State


@dataclass(frozen=True, slots=True)
class Served:
    """An environment as a host declares it. bounds: of the sum of an episode's rewards, if declared."""

    name: str
    schema_hash: str
    bounds: tuple[float, float] | None
    info: Any = None


@dataclass(slots=True, eq=False)
class Host:
    """One instance of an env host. outbox: where messages to it go."""

    name: str
    instance: int
    epoch: int
    environments: dict[str, Served]
    capacity: int
    outbox: Any
    heard_at: float
    attached: bool = True
    draining: bool = False
    sessions: dict[int, Session] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.capacity - len(self.sessions)


class Pool:
    """The hosts and the sessions that wait for one."""

    def __init__(self, quarantine: Quarantine) -> None:
        self.hosts: dict[int, Host] = {}
        self.quarantine = quarantine
        self._queues: dict[str, deque[Session]] = {}
        self._ever_served: set[str] = set()

    # --- hosts -------------------------------------------------------------------------------

    def check(
        self, name: str, instance: int, epoch: int, environments: Iterable[Served]
    ) -> dict[str, Served]:
        """The environments of a Hello by name.

        Raises DuplicateEnvironment for one that is named twice or served elsewhere with another
        schema, EnvProtocolError for an epoch that a newer stream of the instance has fenced.
        """
        known = self.hosts.get(instance)
        if known is not None and epoch <= known.epoch:
            raise EnvProtocolError(
                f"stream of host {name!r} with epoch {epoch} is fenced by epoch {known.epoch}",
                "connect again with a larger epoch",
            )
        found: dict[str, Served] = {}
        for served in environments:
            if served.name in found:
                raise DuplicateEnvironment(
                    f"host {name!r} names environment {served.name!r} twice", "rename one of them"
                )
            found[served.name] = served
            for host in self.hosts.values():
                other = host.environments.get(served.name)
                if host.instance != instance and other and other.schema_hash != served.schema_hash:
                    raise DuplicateEnvironment(
                        f"environment {served.name!r} of host {name!r} has schema {served.schema_hash!r}, "
                        f"host {host.name!r} serves it with {other.schema_hash!r}",
                        "give the changed environment another name, or update all of its hosts",
                    )
        if not found:
            raise EnvProtocolError(f"host {name!r} serves no environment", "give it at least one")
        return found

    def add(self, host: Host) -> None:
        self.hosts[host.instance] = host
        self._ever_served.update(host.environments)

    def remove(self, host: Host) -> None:
        if self.hosts.get(host.instance) is host:
            del self.hosts[host.instance]

    def namesakes(self, host: Host) -> list[Host]:
        """Detached earlier instances of the same host: a restarted process does not come back."""
        return [h for h in self.hosts.values() if h.name == host.name and h is not host and not h.attached]

    def expired(self, now: float, lease_s: float) -> list[Host]:
        """Hosts silent for longer than the lease, whether their stream is up or not."""
        return [host for host in self.hosts.values() if now - host.heard_at > lease_s]

    def forgive(self, stall_s: float) -> None:
        """The gateway itself stood still for this long: that is not the hosts' silence."""
        for host in self.hosts.values():
            host.heard_at += stall_s

    def serves(self, environment: str) -> bool:
        """Whether any host serves it now."""
        return any(environment in host.environments for host in self.hosts.values())

    def ever_served(self, environment: str) -> bool:
        return environment in self._ever_served

    def served(self) -> dict[str, list[Any]]:
        """By environment: what a host declares about it, hosts, their capacity, sessions open."""
        entries: dict[str, list[Any]] = {}
        for host in self.hosts.values():
            for name, served in host.environments.items():
                entry = entries.setdefault(name, [served.info, 0, 0, 0])
                entry[1] += 1
                entry[2] += host.capacity
                entry[3] += sum(1 for s in host.sessions.values() if s.environment == name)
        return entries

    # --- placement ---------------------------------------------------------------------------

    def choose(self, environment: str, now: float) -> Host | None:
        """The host with the most room that may take a session of this environment; None: wait."""
        best: Host | None = None
        for host in self.hosts.values():
            if not host.attached or host.draining or host.free <= 0 or environment not in host.environments:
                continue
            if self.quarantine.held((host.name, environment), now):
                continue
            if best is None or host.free > best.free:
                best = host
        return best

    def wait(self, session: Session) -> None:
        """Queue a session, first come first served."""
        self._queues.setdefault(session.environment, deque()).append(session)

    def waiting(self, environment: str) -> int:
        """Sessions in an environment's queue, including a few that gave up."""
        return len(self._queues.get(environment, ()))

    def place_next(self, now: float) -> list[tuple[Session, Host]]:
        """Take as many queued sessions as there is room for; the caller places each before the next call."""
        placed: list[tuple[Session, Host]] = []
        for environment, queue in list(self._queues.items()):
            while queue:
                if queue[0].state is not State.QUEUED:
                    queue.popleft()
                    continue
                host = self.choose(environment, now)
                if host is None:
                    break
                session = queue.popleft()
                host.sessions[session.id] = session
                placed.append((session, host))
            if not queue:
                del self._queues[environment]
        return placed
