"""The hosts with their free capacity, and the queue of sessions; pure, time is an argument.

A host is one instance of one process. Its stream may break and come back with a larger epoch: for a
short while the host is only detached, and its sessions live. A stream of an older epoch is fenced.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from earl.errors import DuplicateEnvironment, EnvProtocolError
from services.env_gateway.state.faults import FaultSummary, FaultTexts
from services.env_gateway.state.quarantine import Quarantine
from services.env_gateway.state.sessions import GatewaySession


@dataclass(frozen=True, slots=True)
class ServedEnvironment:
    """An environment as a host declares it. bounds: of the sum of an episode's rewards, if declared. seats:
    how many a client may play in a session."""

    name: str
    schema_hash: str
    bounds: tuple[float, float] | None
    info: Any = None
    seats: int = 1

    def differs(self, other: ServedEnvironment) -> str:
        """Describes how two declarations differ, with {} for the other host's name; "" if they agree."""
        if self.schema_hash != other.schema_hash:
            return f"schema {self.schema_hash!r}, host {{!r}} serves it with {other.schema_hash!r}"
        if self.bounds != other.bounds:
            return f"rewards {_range(self.bounds)}, host {{!r}} serves it with rewards {_range(other.bounds)}"
        if self.seats != other.seats:
            return f"seats {self.seats}, host {{!r}} serves it with seats {other.seats}"
        return ""


def _range(bounds: tuple[float, float] | None) -> str:
    return "without bounds" if bounds is None else f"in [{bounds[0]:g}, {bounds[1]:g}]"


@dataclass(slots=True)
class ListedEnvironment:
    """An environment in the fleet. info: as a host declares it, None if no host serves it now; hosts,
    those of them that it is in quarantine on, sessions open and waiting; faults: of its hosts; quarantines:
    a sentence of each; available_hosts: those that may get sessions of it; oldest_wait_s: how long the
    session that has waited longest has been queued."""

    info: Any = None
    hosts: int = 0
    capacity: int = 0
    open_sessions: int = 0
    queued: int = 0
    quarantined: int = 0
    faults: FaultSummary = field(default_factory=FaultSummary)
    quarantines: list[str] = field(default_factory=list)
    available_hosts: int = 0
    oldest_wait_s: float = 0.0


@dataclass(slots=True, eq=False)
class HostState:
    """One instance of an env host. outbox: where messages to it go."""

    name: str
    instance: int
    epoch: int
    environments: dict[str, ServedEnvironment]
    capacity: int
    outbox: Any
    last_seen_s: float
    # The stream broke, and the host is lost unless it is back by then.
    back_by: float = math.inf
    draining: bool = False
    sessions: dict[int, GatewaySession] = field(default_factory=dict)

    @property
    def attached(self) -> bool:
        return self.back_by == math.inf

    @property
    def free(self) -> int:
        return self.capacity - len(self.sessions)


class Pool:
    """The hosts and the sessions that wait for one."""

    def __init__(self, quarantine: Quarantine) -> None:
        self.hosts: dict[int, HostState] = {}
        self.quarantine = quarantine
        self.faults = FaultTexts()
        # By environment: the sessions that wait, by id, first come first served.
        self._queues: dict[str, OrderedDict[int, GatewaySession]] = {}
        self._ever_served: set[str] = set()

    # --- hosts -------------------------------------------------------------------------------

    def check(
        self, name: str, instance: int, epoch: int, environments: Iterable[ServedEnvironment]
    ) -> dict[str, ServedEnvironment]:
        """The environments of a Hello by name.

        Raises DuplicateEnvironment for one that is named twice, or served elsewhere with another schema,
        other bounds of its rewards or another number of seats; EnvProtocolError for one without a schema, and
        for an epoch that a newer stream of the instance has fenced.
        """
        known = self.hosts.get(instance)
        if known is not None and epoch <= known.epoch:
            raise EnvProtocolError(
                f"stream of host {name!r} with epoch {epoch} is fenced by epoch {known.epoch}",
                "connect again with a larger epoch",
            )
        by_name: dict[str, ServedEnvironment] = {}
        for served in environments:
            if served.name in by_name:
                raise DuplicateEnvironment(
                    f"host {name!r} names environment {served.name!r} twice", "rename one of them"
                )
            if not served.schema_hash:
                raise EnvProtocolError(
                    f"environment {served.name!r} of host {name!r} has an empty schema_hash",
                    "send a hash of what decides how it is played: its version, its tools",
                )
            by_name[served.name] = served
            for host in self.hosts.values():
                other = host.environments.get(served.name)
                if host.instance != instance and other and (difference := served.differs(other)):
                    raise DuplicateEnvironment(
                        f"environment {served.name!r} of host {name!r} has {difference.format(host.name)}",
                        "give the changed environment another name, or update all of its hosts",
                    )
        if not by_name:
            raise EnvProtocolError(f"host {name!r} serves no environment", "give it at least one")
        return by_name

    def add(self, host: HostState) -> None:
        self.hosts[host.instance] = host
        self._ever_served.update(host.environments)

    def remove(self, host: HostState) -> None:
        if self.hosts.get(host.instance) is host:
            del self.hosts[host.instance]

    def namesakes(self, host: HostState) -> list[HostState]:
        """Detached earlier instances of the same host: a restarted process does not come back."""
        return [h for h in self.hosts.values() if h.name == host.name and h is not host and not h.attached]

    def expired(self, now: float, lease_s: float) -> list[tuple[HostState, str]]:
        """Hosts that are lost, and why: without a sign of life for longer than the lease, or not back in
        time.
        """
        lost: list[tuple[HostState, str]] = []
        for host in self.hosts.values():
            if now - host.last_seen_s > lease_s:
                lost.append((host, f"sent nothing for {lease_s:g} s"))
            elif now >= host.back_by:
                lost.append((host, "lost its stream and did not come back"))
        return lost

    def forgive(self, stall_s: float) -> None:
        """The gateway itself stood still for this long: that is not the hosts' silence."""
        for host in self.hosts.values():
            host.last_seen_s += stall_s
            host.back_by += stall_s

    def serves(self, environment: str) -> bool:
        """Returns whether any host serves it now."""
        return any(environment in host.environments for host in self.hosts.values())

    def refusal_of_seats(self, environment: str, seats: int) -> str:
        """Says that so many seats are more than the environment offers to a client; "" if they are not, or if
        no host serves it now."""
        for host in self.hosts.values():
            served = host.environments.get(environment)
            if served is not None and seats > served.seats:
                most = f"open it with seats={served.seats}" + (" or fewer" if served.seats > 1 else "")
                return f"seats {seats} of {environment!r}, which offers {served.seats}: {most}"
        return ""

    def ever_served(self, environment: str) -> bool:
        return environment in self._ever_served

    def listed(self, now: float) -> dict[str, ListedEnvironment]:
        """Lists the environments that are served or waited for, by name."""
        entries: dict[str, ListedEnvironment] = {}
        for host in self.hosts.values():
            opened = Counter(session.environment for session in host.sessions.values())
            for name, served in host.environments.items():
                entry = entries.setdefault(name, ListedEnvironment())
                entry.info = served.info
                entry.hosts += 1
                entry.capacity += host.capacity
                entry.open_sessions += opened[name]
                entry.quarantined += self.quarantine.held((host.name, name), now)
                entry.available_hosts += host.capacity > 0 and self._may_place(host, name, now)
        for name, queue in self._queues.items():
            entry = entries.setdefault(name, ListedEnvironment())
            entry.queued = len(queue)
            since = min((session.waits_since for session in queue.values()), default=now)
            entry.oldest_wait_s = max(0.0, now - since)
        for name, entry in entries.items():
            entry.faults = self.faults.summary(self.faults.hosts(name))
            entry.quarantines = self.quarantines(name, now)
        return entries

    def quarantines(self, environment: str, now: float) -> list[str]:
        """A sentence for each of its hosts that is in quarantine with it."""
        serving = {host.name for host in self.hosts.values() if environment in host.environments}
        described = (self.quarantine.describe((name, environment), now) for name in sorted(serving))
        return [text for text in described if text]

    # --- placement ---------------------------------------------------------------------------

    def _may_place(self, host: HostState, environment: str, now: float) -> bool:
        """Returns whether the host may get sessions of this environment, once it has free capacity."""
        return (
            host.attached
            and not host.draining
            and environment in host.environments
            and not self.quarantine.held((host.name, environment), now)
        )

    def choose(self, environment: str, now: float) -> HostState | None:
        """Returns the host with the most free capacity that may take a session of this environment; None:
        wait.

        One that is on probation comes after all others, and takes one at a time.
        """
        best: HostState | None = None
        tried: HostState | None = None
        for host in self.hosts.values():
            if host.free <= 0 or not self._may_place(host, environment, now):
                continue
            if self.quarantine.on_probation((host.name, environment), now):
                if all(session.environment != environment for session in host.sessions.values()):
                    tried = host
            elif best is None or host.free > best.free:
                best = host
        return best or tried

    def wait(self, session: GatewaySession, *, first: bool = False) -> None:
        """Queues a session behind the others, or before them."""
        queue = self._queues.setdefault(session.environment, OrderedDict())
        queue[session.id] = session
        if first:
            queue.move_to_end(session.id, last=False)

    def leave(self, session: GatewaySession) -> None:
        """The session waits no longer."""
        queue = self._queues.get(session.environment)
        if queue is not None:
            queue.pop(session.id, None)
            if not queue:
                del self._queues[session.environment]

    def waiting(self, environment: str) -> int:
        """Sessions in an environment's queue."""
        return len(self._queues.get(environment, ()))

    def place_next(self, now: float) -> list[tuple[GatewaySession, HostState]]:
        """Takes as many queued sessions as there is capacity for; the caller places each before the next
        call.
        """
        placed: list[tuple[GatewaySession, HostState]] = []
        for environment, queue in list(self._queues.items()):
            while queue and (host := self.choose(environment, now)) is not None:
                _, session = queue.popitem(last=False)
                host.sessions[session.id] = session
                placed.append((session, host))
            if not queue:
                del self._queues[environment]
        return placed
