"""The gateway's rules: who may send what, where it goes, and how each session ends. No I/O: messages go
into outboxes, `clock` tells the time, `sweep` is called often and enforces every deadline and lease.

    client ─ Open ─► place or queue ─► Reset ─► host       client_side: what clients may send
    client ─ Step ─► seq checked ────► Step ──► host       host_side:   what hosts may send
    client ◄─ Result ◄── validated ◄── Result ─ host       episodes:    where sessions go, how they end
"""

from __future__ import annotations

from collections.abc import Callable

from earl.config.environment import GatewayConfig
from earl.env import stream_codec
from earl.v1 import env_pb2
from services.env_gateway import codec
from services.env_gateway.client_side import ClientSide
from services.env_gateway.episodes import Episodes, Quarantined
from services.env_gateway.host_side import HostSide
from services.env_gateway.results import INFRA_ERROR, TIMEOUT
from services.env_gateway.state.sessions import GatewaySession, SessionState


class Gateway:
    """State of one gateway process.

    clock: seconds, monotonic. on_quarantine(environment, host, reason): called when one starts.
    """

    def __init__(
        self, config: GatewayConfig, clock: Callable[[], float], on_quarantine: Quarantined | None = None
    ) -> None:
        self._config = config
        self._clock = clock
        self._episodes = Episodes(config, clock, on_quarantine)
        self._hosts = HostSide(self._episodes)
        self._clients = ClientSide(self._episodes)
        self.counts = self._episodes.counts
        self.refused, self.totals = self.counts.refused, self.counts.totals
        self.pool = self._episodes.pool
        # Every session that has not ended, by the gateway's id.
        self.sessions = self._episodes.sessions
        self._swept_at = clock()
        self._pinged_at = self._swept_at
        # Called for every message of a host's stream and of a client's: see HostSide and ClientSide.
        self.attach, self.detach, self.broke = self._hosts.attach, self._hosts.detach, self._hosts.broke
        self.mark_alive, self.handle_host = self._hosts.mark_alive, self._hosts.handle
        self.handle_client, self.client_left = self._clients.handle, self._clients.left

    # --- time --------------------------------------------------------------------------------

    def sweep(self, interval_s: float) -> None:
        """Enforces leases and deadlines, pings the hosts; to be called every `interval_s`."""
        now = self._clock()
        stall_s = now - self._swept_at - interval_s
        if stall_s > interval_s:
            self.pool.forgive(stall_s)
        self._swept_at = now
        if now - self._pinged_at >= self._config.lease_s / 4:
            self._pinged_at = now
            for host in self.pool.hosts.values():
                if host.attached:
                    host.outbox.put(stream_codec.ping(int(now * 1e3)))
        for host, reason in self.pool.expired(now, self._config.lease_s):
            self._hosts.lose(host, reason)
        for session in list(self.sessions.values()):
            if session.state is SessionState.QUEUED and self._is_unknown(session, now):
                text = f"no host serves {session.environment!r}"
                self._episodes.fail(session, INFRA_ERROR, "UnknownEnvironment", text)
            elif now >= session.deadline or now >= session.episode_ends:
                self._overdue(session, session.overdue(now))
        if self.pool.quarantine.ends(now):
            self._episodes.place_waiting()

    def _is_unknown(self, session: GatewaySession, now: float) -> bool:
        if self.pool.serves(session.environment):
            return False
        # A name that was served once may come back with its host: it waits for its whole queue_s.
        return now >= min(session.unknown_until, session.deadline)

    def _overdue(self, session: GatewaySession, text: str) -> None:
        if not text:
            return
        quarantines = self.pool.quarantines(session.environment, self._clock())
        if session.state is SessionState.QUEUED and quarantines:
            reason = f"{session.environment}: {text}; {'; '.join(quarantines)}"
            self._episodes.fail(session, INFRA_ERROR, "EnvHostLost", reason)
            return
        host = session.host
        if host is not None and session.pending is not None:
            self._episodes.fault(host, session.environment, text)
        self._episodes.fail(session, TIMEOUT, "DeadlineExceeded", f"{session.environment}: {text}")

    # --- stopping and looking ----------------------------------------------------------------

    @property
    def draining(self) -> bool:
        return self._clients.draining

    def drain(self, grace_s: float) -> None:
        """Accepts no new sessions; those in progress may finish."""
        self._clients.draining = True
        for host in self.pool.hosts.values():
            host.outbox.put(stream_codec.drain(grace_s, "the gateway stops"))
        for session in list(self.sessions.values()):
            if session.state is SessionState.QUEUED:
                self._episodes.fail(session, INFRA_ERROR, "EnvHostLost", "the gateway is stopping")

    def listing(self) -> env_pb2.ListEnvironmentsResponse:
        """ListEnvironmentsResponse of what hosts serve and sessions wait for."""
        return codec.listing(self.pool.listed(self._clock()), self.counts)

    def hosts(self) -> env_pb2.ListHostsResponse:
        """ListHostsResponse of who is attached and what was counted."""
        return codec.hosts(self.pool, self.counts, self._clock())
