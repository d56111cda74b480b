"""Every session that has not ended and the hosts they are on: where each goes and how it ends. No I/O.

Every session ends exactly once, as OK, TRUNCATED, ENV_ERROR, INFRA_ERROR or TIMEOUT. One whose host is
lost before its first step goes to another instead, a bounded number of times.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from earl.config.environment import GatewayConfig
from earl.env import stream_codec
from earl.obs import tracing
from services.env_gateway import codec
from services.env_gateway.results import INFRA_ERROR
from services.env_gateway.state.counts import Counts
from services.env_gateway.state.faults import MOST_CHARACTERS
from services.env_gateway.state.pool import HostState, Pool
from services.env_gateway.state.quarantine import Quarantine
from services.env_gateway.state.sessions import GatewaySession, SessionState

log = logging.getLogger(__name__)

Quarantined = Callable[[str, str, str], None]


class Episodes:
    """Places sessions on hosts.

    clock: monotonic seconds. on_quarantine(environment, host, reason): called when one begins.
    """

    def __init__(
        self, config: GatewayConfig, clock: Callable[[], float], on_quarantine: Quarantined | None
    ) -> None:
        self.config = config
        self.clock = clock
        self.counts = Counts()
        self.pool = Pool(Quarantine(config.quarantine_faults, config.quarantine_s))
        # By the gateway's id.
        self.sessions: dict[int, GatewaySession] = {}
        self._on_quarantine = on_quarantine or (lambda environment, host, reason: None)
        self._last_id = secrets.randbits(60)

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def begin(self, session: GatewaySession) -> None:
        """Places a session that was opened, or queues it."""
        self.sessions[session.id] = session
        self.counts.totals["sessions"] += 1
        self.pool.wait(session)
        self.place_waiting()

    def place_waiting(self) -> None:
        """Places queued sessions on hosts with free capacity."""
        now = self.clock()
        unseated: dict[GatewaySession, str] = {}
        for session, host in self.pool.place_next(now):
            if refusal := self.pool.refusal_of_seats(session.environment, session.seats):
                del host.sessions[session.id]
                unseated[session] = refusal
                continue
            session.place(host, now)
            self.counts.queue_waits.add(now - session.waits_since)
            self.trace(session, "queue", now - session.waits_since)
            host.outbox.put(session.pending)
        for session, refusal in unseated.items():
            self.fail(session, INFRA_ERROR, "EnvProtocolError", refusal)
        if unseated:  # others may have what was free for them
            self.place_waiting()

    def trace(self, session: GatewaySession, what: str, seconds: float) -> None:
        """A span of the session that ended now."""
        if session.traceparent:
            now_ns = time.time_ns()
            host = session.host.name if session.host is not None else ""
            start_ns = now_ns - int(seconds * 1e9)
            fields = {"seq": session.seq, "host": host, "environment": session.environment}
            tracing.record(f"gateway {what}", session.traceparent, start_ns, now_ns, fields)

    def host_lost(self, host: HostState, reason: str) -> None:
        """Moves the sessions of a lost host or fails them; counts a fault of each environment in use."""
        text = f"host {host.name} {reason}"
        self.pool.remove(host)
        for environment in {session.environment for session in host.sessions.values()}:
            self.fault(host, environment, text)
        sessions, host.sessions = list(host.sessions.values()), {}
        moving = [session for session in sessions if session.may_move(self.config.reset_attempts)]
        for session in reversed(moving):
            self._move(session, text)
        for session in sessions:
            if session.host is host:
                self.fail(session, INFRA_ERROR, "EnvHostLost", text)
        fields = {"sessions": len(sessions), "moved": len(moving)}
        log.log(logging.WARNING if sessions else logging.INFO, "%s", text, extra={"fields": fields})
        self.counts.totals["hosts_lost"] += 1
        self.place_waiting()

    def _move(self, session: GatewaySession, reason: str) -> None:
        """Back to the head of the queue; the client, if it waits, is asked to continue waiting."""
        del self.sessions[session.id]
        session.move(self.next_id(), self.clock())
        session.reset = codec.reset_again(session.reset, session.id)
        self.sessions[session.id] = session
        self.pool.wait(session, first=True)
        self.counts.totals["moved"] += 1
        self.tell_alive(session, f"{reason}; trying another host")

    def tell_alive(self, session: GatewaySession, text: str) -> None:
        """Progress to a client that waits for the session's reset, or for step 1 behind it."""
        if session.answer is None or session.held is not None:
            seq = session.held.seq if session.held is not None else 0
            session.client.outbox.put(codec.alive(session.number, seq, text))

    def fail(self, session: GatewaySession, ending: int, reason: str, text: str) -> None:
        """Ends a session without a result of the environment; what runs in the host is cancelled."""
        if session.state is SessionState.ENDED:
            return
        cancelled = session.pending is not None
        seq = session.held.seq if session.held is not None else session.seq
        session.answer = codec.failure(session.number, seq, ending, reason, text)
        session.client.outbox.put(session.answer)
        self.counts.totals[f"failed: {reason}"] += 1
        if cancelled and session.host is not None:
            session.host.outbox.put(stream_codec.cancel(session.id, session.seq, text))
        self.release(session)

    def release(self, session: GatewaySession) -> None:
        """Ends a session: its place becomes free, and its last answer is kept for a while."""
        if session.state is SessionState.QUEUED:
            self.pool.leave(session)
        session.end()
        self.sessions.pop(session.id, None)
        session.client.ended(session.number)
        host = session.host
        if host is not None and host.sessions.pop(session.id, None) is not None:
            host.outbox.put(stream_codec.close(session.id))
            self.place_waiting()

    def fault(self, host: HostState, environment: str, reason: str) -> None:
        """Counts against a host's environment; enough in a row put it into quarantine.

        Of the reason, which may be the host's own text, the beginning is kept.
        """
        key = (host.name, environment)
        reason = reason[:MOST_CHARACTERS]
        self.pool.faults.note(key, reason)
        duration_s = self.pool.quarantine.fault(key, self.clock(), reason)
        if duration_s:
            self.counts.totals["quarantines"] += 1
            text = "%s of host %s in quarantine for %g s: %s"
            log.warning(text, environment, host.name, duration_s, reason)
            self._on_quarantine(environment, host.name, reason)
