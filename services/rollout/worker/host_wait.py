"""A worker's wait for an environment host: it leases no ticket before one is there, so no attempt is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Protocol

from earl.errors import DeadlineExceeded, ServiceUnavailable, UnknownEnvironment

log = logging.getLogger(__name__)

POLL_S = 0.5
CALL_S = 5.0
# Seconds between lines of the log about the wait.
NOTICE_S = 30.0


class HostListing(Protocol):
    """The environments that hosts serve now, as earl.env.session.GatewayClient lists them."""

    address: str

    async def environments(self, deadline_s: float = ...) -> Collection[str]: ...

    async def offered_seats(self, deadline_s: float = ...) -> Mapping[str, int]: ...


class HostWait:
    """Waits until hosts serve all environments. wait_s: by name, the most seconds to wait for it.

    seats: by name, how many the policy plays, where these are several.
    """

    def __init__(
        self,
        gateway: HostListing,
        wait_s: Mapping[str, float],
        seats: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._seats = seats
        self._gateway = gateway
        self._wait_s = wait_s
        self._began_s = 0.0
        self._waits = False

    @property
    def seconds(self) -> float:
        """Returns how long it has been waiting; 0 before and after."""
        return time.monotonic() - self._began_s if self._waits else 0.0

    async def served(self) -> None:
        """Returns once all environments are served.

        Raises UnknownEnvironment after the wait_s of one, and for one that offers too few seats.
        """
        self._began_s, next_notice_s = time.monotonic(), 0.0
        self._waits = True
        try:
            while missing := self._wait_s.keys() - (names := await self._names()):
                waited_s = self.seconds
                name = min(missing, key=lambda missed: (self._wait_s[missed], missed))
                wait_s = self._wait_s[name]
                if waited_s >= wait_s:
                    raise UnknownEnvironment(
                        f"no host served {name!r} within {wait_s:g} s; {_names_served(names)}",
                        f"{self._start}, or raise wait_s of the environment",
                    )
                if waited_s >= next_notice_s:
                    next_notice_s = waited_s + NOTICE_S
                    log.warning(
                        "no host serves %r yet, %s; %s within %.0f s",
                        name, _names_served(names), self._start, wait_s - waited_s,
                    )  # fmt: skip
                await asyncio.sleep(min(POLL_S, max(0.0, wait_s - waited_s)))
        finally:
            self._waits = False
        if self._seats:
            offered = await self._gateway.offered_seats(CALL_S)
            for name, seats in self._seats.items():
                if seats > offered.get(name, seats):
                    raise UnknownEnvironment(
                        f"environment.seats = {seats} of {name!r}, which offers {offered[name]}",
                        f"set seats = {offered[name]}, or serve an environment that offers {seats} seats",
                    )

    @property
    def _start(self) -> str:
        return f"start one with: earl env serve MODULE:CLASS --gateway {self._gateway.address}"

    async def _names(self) -> Collection[str]:
        """Returns the served environments; none while the gateway does not answer, as callers report."""
        try:
            return await self._gateway.environments(CALL_S)
        except (ServiceUnavailable, DeadlineExceeded):
            return ()


def _names_served(names: Collection[str]) -> str:
    return f"hosts serve {', '.join(sorted(names))}" if names else "no host is connected"
