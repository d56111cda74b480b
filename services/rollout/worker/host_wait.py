"""A worker's wait for an environment host: it leases no ticket before one is there, so no attempt is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from earl.env.session import OfferedTools
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

    async def tools(self, deadline_s: float = ...) -> Mapping[str, OfferedTools]: ...


class HostWait:
    """Waits until hosts serve all environments. wait_s: by name, the most seconds to wait for it.

    seats: by name, how many the policy plays, where these are several.
    tools: by name, those that the run names; the environment must have them.
    """

    def __init__(
        self,
        gateway: HostListing,
        wait_s: Mapping[str, float],
        seats: Mapping[str, int] = MappingProxyType({}),
        tools: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        self._seats = seats
        self._gateway = gateway
        self._tools = tools
        self._wait_s = wait_s
        self._began_s = 0.0
        self._waits = False

    @property
    def seconds(self) -> float:
        """Returns how long it has been waiting; 0 before and after."""
        return time.monotonic() - self._began_s if self._waits else 0.0

    async def served(self) -> None:
        """Returns once all environments are served.

        Raises UnknownEnvironment after the wait_s of one, and for one that offers too few seats or lacks a
        tool that the run names.
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
        if self._tools:
            tools_offered = await self._gateway.tools(CALL_S)
            for name, tools in self._tools.items():
                _check_tools(name, tools, tools_offered.get(name))

    @property
    def _start(self) -> str:
        return f"start one with: earl env serve MODULE:CLASS --gateway {self._gateway.address}"

    async def _names(self) -> Collection[str]:
        """Returns the served environments; none while the gateway does not answer, as callers report."""
        try:
            return await self._gateway.environments(CALL_S)
        except (ServiceUnavailable, DeadlineExceeded):
            return ()


def _check_tools(name: str, allowed: Sequence[str], offered: OfferedTools | None) -> None:
    if offered is None:
        return  # its host left just now
    if not offered.selectable:
        raise UnknownEnvironment(
            f"tools = {list(allowed)} of environment {name}: its host cannot leave tools out",
            "remove the key, or serve an environment that can",
        )
    # An environment that has none before its reset, as with MCP, judges the names then.
    missing = [tool for tool in allowed if offered.names and tool not in offered.names]
    if missing:
        raise UnknownEnvironment(
            f"environment {name} has no tool {missing[0]!r}", f"give some of {', '.join(offered.names)}"
        )


def _names_served(names: Collection[str]) -> str:
    return f"hosts serve {', '.join(sorted(names))}" if names else "no host is connected"
