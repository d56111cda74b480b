"""The gateway's rules: who may say what, where it goes, and how each session ends. No I/O: messages go
into outboxes, `clock` tells the time, `sweep` is called often and enforces every deadline and lease.

    client ─ Open ─► place or queue ─► Reset ─► host        Every session ends exactly once, as OK,
    client ─ Step ─► seq checked ────► Step ──► host        TRUNCATED, ENV_ERROR, INFRA_ERROR or
    client ◄─ Result ◄── validated ◄── Result ─ host        TIMEOUT. What breaks the rules is refused
                                                            and counted, and changes nothing else.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any

from earl.config.environment import GatewayConfig
from earl.errors import EnvHostLost, EnvProtocolError
from services.env_gateway import codec
from services.env_gateway.admission import MAX_CAPACITY, check_hello, opening_limits
from services.env_gateway.clients import ClientStream
from services.env_gateway.pool import Host, Pool
from services.env_gateway.quarantine import Quarantine
from services.env_gateway.sessions import (
    ENV_ERROR,
    INFRA_ERROR,
    OK,
    TIMEOUT,
    TRUNCATED,
    UNSPECIFIED,
    Arrival,
    Session,
    State,
    Verdict,
    fault_in,
)

log = logging.getLogger(__name__)

MAX_QUEUE = 65_536
# Progress is dropped rather than queued behind this many unread messages.
PROGRESS_BACKLOG = 1_000

Quarantined = Callable[[str, str, str], None]


class Gateway:
    """State of one gateway process.

    clock: seconds, monotonic. on_quarantine(environment, host, reason): called when one starts.
    """

    def __init__(
        self, config: GatewayConfig, clock: Callable[[], float], on_quarantine: Quarantined | None = None
    ) -> None:
        self._config = config
        self._clock = clock
        self._on_quarantine = on_quarantine or (lambda environment, host, reason: None)
        self.pool = Pool(Quarantine(config.quarantine_faults, config.quarantine_s))
        # Every session that has not ended, by the gateway's id.
        self.sessions: dict[int, Session] = {}
        # What was refused, by reason; what happened, by kind.
        self.refused: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self._next_id = secrets.randbits(60)
        self._swept_at = clock()
        self._pinged_at = self._swept_at
        self.draining = False

    # --- hosts -------------------------------------------------------------------------------

    def attach(self, hello: Any, outbox: Any) -> Host:
        """Accept a host's stream. Raises EnvProtocolError or DuplicateEnvironment; nothing changed then."""
        try:
            return self._attach(hello, outbox)
        except EnvProtocolError as error:
            self.refused[f"hello: {type(error).__name__}"] += 1
            log.warning("host %r refused: %s", hello.host, error)
            raise

    def _attach(self, hello: Any, outbox: Any) -> Host:
        check_hello(hello)
        served = [codec.served(info) for info in hello.environments]
        environments = self.pool.check(hello.host, hello.instance, hello.epoch, served)
        now = self._clock()
        host = self.pool.hosts.get(hello.instance)
        if host is None:
            host = Host(hello.host, hello.instance, hello.epoch, environments, hello.capacity, outbox, now)
            self.pool.add(host)
            for former in self.pool.namesakes(host):
                self._lose(former, "was started again")
        else:
            host.outbox.close(EnvProtocolError(f"fenced by epoch {hello.epoch} of the same host"))
            host.name, host.epoch, host.outbox = hello.host, hello.epoch, outbox
            host.environments, host.capacity, host.heard_at = environments, hello.capacity, now
            host.attached, host.draining = True, False
            self.pool.add(host)
        config = self._config
        outbox.put(codec.welcome(config.lease_s, config.max_text_bytes, list(host.sessions)))
        for session in host.sessions.values():
            if session.pending is not None:
                outbox.put(session.pending)
        log.info("host %s attached", host.name, extra={"fields": {"epoch": host.epoch}})
        self._place_waiting()
        return host

    def detach(self, host: Host, epoch: int, clean: bool) -> None:
        """A host's stream ended. clean: the host said so; otherwise it may come back within its lease."""
        if host.epoch != epoch or self.pool.hosts.get(host.instance) is not host:
            return
        host.attached = False
        if clean or not host.sessions:
            self._lose(host, "left")

    def _lose(self, host: Host, why: str) -> None:
        text = f"host {host.name} {why}"
        level = logging.WARNING if host.sessions else logging.INFO
        log.log(level, "%s", text, extra={"fields": {"sessions": len(host.sessions)}})
        self.totals["hosts_lost"] += 1
        self.pool.remove(host)
        for environment in {session.environment for session in host.sessions.values()}:
            self._fault(host, environment, text)
        for session in list(host.sessions.values()):
            self._fail(session, INFRA_ERROR, "EnvHostLost", text)
        host.outbox.close(EnvHostLost(text, "connect again"))

    def heard(self, host: Host, epoch: int) -> None:
        """Anything that arrives on the host's stream renews its lease."""
        if host.epoch == epoch:
            host.heard_at = self._clock()

    def host_said(self, host: Host, epoch: int, message: Any) -> None:
        """One message of a host. Raises EnvProtocolError on a fenced stream."""
        if host.epoch != epoch:
            self.refused["fenced"] += 1
            raise EnvProtocolError(f"epoch {epoch} of host {host.name} is fenced by {host.epoch}")
        kind = message.WhichOneof("message")
        if kind == "result":
            self._result(host, message.result)
        elif kind == "progress":
            self._progress(host, message.progress)
        elif kind == "credit":
            host.capacity = min(message.credit.capacity, MAX_CAPACITY)
            self._place_waiting()
        elif kind == "drain":
            host.draining = True
            log.info("host %s drains: %s", host.name, message.drain.reason)
        elif kind != "pong":
            self._refuse_host(host, "", f"unexpected {kind or 'empty message'}")

    def _result(self, host: Host, result: Any) -> None:
        session = self.sessions.get(result.session)
        if session is None:
            self.refused["late_result"] += 1
            return
        if session.host is not host:
            self._refuse_host(host, session.environment, "foreign_session")
            return
        arrival = session.judge_result(result.seq)
        if arrival is Arrival.LATE:
            self.refused["late_result"] += 1
            return
        if arrival is Arrival.AHEAD:
            self._refuse_host(host, session.environment, "wrong_seq")
            return
        served = host.environments.get(session.environment)
        bounds = served.bounds if served else None
        wrong = fault_in(result, self._config.max_text_bytes, bounds, session.return_)
        if wrong:
            self.refused["bad_result"] += 1
            self._fault(host, session.environment, wrong)
            self._fail(session, ENV_ERROR, "EnvProtocolError", wrong)
            return
        now = self._clock()
        result.session = session.number
        result.queue_s = session.queue_s if session.seq == 0 else 0.0
        result.host_s = now - session.sent_at
        session.return_ += result.reward
        session.answer = codec.result(result)
        session.client.outbox.put(session.answer)
        session.answered(result.done)
        self.totals["results"] += 1
        if result.done:
            if result.ending in (OK, TRUNCATED):
                self.pool.quarantine.success((host.name, session.environment))
            else:
                self._fault(host, session.environment, result.message)
            self._release(session)

    def _progress(self, host: Host, progress: Any) -> None:
        session = self.sessions.get(progress.session)
        if session is None or session.host is not host or not session.progressed(progress.seq, self._clock()):
            self.refused["late_progress"] += 1
            return
        if len(session.client.outbox) < PROGRESS_BACKLOG and len(progress.message) <= 1_024:
            progress.session = session.number
            session.client.outbox.put(codec.progress(progress))

    def _refuse_host(self, host: Host, environment: str, reason: str) -> None:
        self.refused[reason] += 1
        log.warning("refused a message of host %s: %s", host.name, reason)
        for name in [environment] if environment in host.environments else host.environments:
            self._fault(host, name, reason)

    def _fault(self, host: Host, environment: str, reason: str) -> None:
        duration_s = self.pool.quarantine.fault((host.name, environment), self._clock())
        if duration_s:
            self.totals["quarantines"] += 1
            log.warning(
                "%s of host %s in quarantine for %g s: %s", environment, host.name, duration_s, reason
            )
            self._on_quarantine(environment, host.name, reason)

    # --- clients -----------------------------------------------------------------------------

    def client_said(self, client: ClientStream, message: Any) -> None:
        """One message of a client. What breaks the rules is answered with a refusal."""
        kind = message.WhichOneof("message")
        if kind == "step":
            self._step(client, message.step)
        elif kind == "open":
            self._open(client, message.open)
        elif kind == "close":
            self._close(client, message.close.session)
        elif kind == "cancel":
            session = client.sessions.get(message.cancel.session)
            if session is not None and session.state is not State.ENDED:
                self._fail(session, TIMEOUT, "DeadlineExceeded", f"cancelled: {message.cancel.reason}")
        else:
            self.refused["empty_message"] += 1

    def client_left(self, client: ClientStream) -> None:
        """The stream ended: its sessions end, and nobody is left to tell."""
        # Those in the queue first: a place that becomes free must not go to one of them.
        queued_first = sorted(client.sessions, key=lambda n: client.sessions[n].state is not State.QUEUED)
        for number in queued_first:
            self._close(client, number)

    def _open(self, client: ClientStream, opening: Any) -> None:
        number = opening.session
        limits_s, wrong = self._opening_limits(client, opening)
        if wrong:
            self._refuse_client(client, number, 0, INFRA_ERROR, "bad_open", wrong)
            return
        if self.draining:
            text = "the gateway is stopping"
            client.outbox.put(codec.failure(number, 0, INFRA_ERROR, "EnvHostLost", text))
            return
        now = self._clock()
        self._next_id += 1
        reset = codec.reset(self._next_id, opening, limits_s["reset_s"])
        session = Session(self._next_id, client, number, opening.environment, limits_s, now, reset)
        client.sessions[number] = self.sessions[session.id] = session
        self.totals["sessions"] += 1
        if not self.pool.ever_served(session.environment):
            session.unknown_until = now + min(self._config.lease_s, limits_s["queue_s"])
        self.pool.wait(session)
        self._place_waiting()

    def _opening_limits(self, client: ClientStream, opening: Any) -> tuple[dict[str, float], str]:
        """The limits, or what is wrong with the Open."""
        if wrong := client.refusal(opening.session):
            return {}, wrong
        if self.pool.waiting(opening.environment) >= MAX_QUEUE:
            return {}, f"{MAX_QUEUE} sessions wait for {opening.environment!r}"
        try:
            return opening_limits(opening, self._config.max_text_bytes), ""
        except ValueError as error:
            return {}, str(error)

    def _step(self, client: ClientStream, step: Any) -> None:
        number, seq = step.session, step.seq
        session = client.sessions.get(number)
        if session is None:
            text = f"session {number} is not open on this stream"
            self._refuse_client(client, number, seq, INFRA_ERROR, "unknown_session", text)
            return
        verdict = session.judge_step(seq)
        if verdict is Verdict.FORWARD:
            size_bytes = step.ByteSize()
            if size_bytes > self._config.max_text_bytes:
                text = f"action of {size_bytes} bytes is larger than {self._config.max_text_bytes}"
                self._refuse_client(client, number, seq, UNSPECIFIED, "oversize_action", text)
                return
            session.start_step(self._clock())
            step.session = session.id
            step.deadline_s = session.limits_s["step_s"]
            session.pending = codec.step(step)
            session.host.outbox.put(session.pending)
        elif verdict is Verdict.REPEAT:
            client.outbox.put(session.answer)
        elif verdict is Verdict.REFUSE:
            if session.state is State.ENDED:
                text = f"session {number} has ended"
            else:
                text = f"step {seq} of session {number} follows {session.seq} ({session.state.value})"
            self._refuse_client(client, number, seq, UNSPECIFIED, "wrong_step", text)

    def _refuse_client(
        self, client: ClientStream, number: int, seq: int, ending: int, reason: str, text: str
    ) -> None:
        self.refused[reason] += 1
        client.outbox.put(codec.failure(number, seq, ending, "EnvProtocolError", text))

    def _close(self, client: ClientStream, number: int) -> None:
        session = client.forget(number)
        if session is None or session.state is State.ENDED:
            return
        session.end()
        self._release(session)

    # --- endings -----------------------------------------------------------------------------

    def _fail(self, session: Session, ending: int, reason: str, text: str) -> None:
        """End a session without a result of the environment; what runs in the host is cancelled."""
        if session.state is State.ENDED:
            return
        cancelled = session.pending is not None
        session.answer = codec.failure(session.number, session.seq, ending, reason, text)
        session.client.outbox.put(session.answer)
        session.end()
        self.totals[f"failed: {reason}"] += 1
        if cancelled and session.host is not None:
            session.host.outbox.put(codec.cancel(session.id, session.seq, text))
        self._release(session)

    def _release(self, session: Session) -> None:
        """An ended session gives its place back; its last answer is kept for a while."""
        self.sessions.pop(session.id, None)
        session.client.ended(session.number)
        host = session.host
        if host is not None and host.sessions.pop(session.id, None) is not None:
            host.outbox.put(codec.close(session.id))
            self._place_waiting()

    def _place_waiting(self) -> None:
        now = self._clock()
        for session, host in self.pool.place_next(now):
            session.place(host, now)
            session.pending, session.reset = session.reset, None
            host.outbox.put(session.pending)

    # --- time --------------------------------------------------------------------------------

    def sweep(self, interval_s: float) -> None:
        """Enforce leases and deadlines, ping the hosts; to be called every `interval_s`."""
        now = self._clock()
        stall_s = now - self._swept_at - interval_s
        if stall_s > interval_s:
            self.pool.forgive(stall_s)
        self._swept_at = now
        if now - self._pinged_at >= self._config.lease_s / 4:
            self._pinged_at = now
            for host in self.pool.hosts.values():
                if host.attached:
                    host.outbox.put(codec.ping(int(now * 1e3)))
        for host in self.pool.expired(now, self._config.lease_s):
            self._lose(host, f"was silent for {self._config.lease_s:g} s")
        for session in list(self.sessions.values()):
            if session.state is State.QUEUED and self._is_unknown(session, now):
                text = f"no host serves {session.environment!r}"
                self._fail(session, INFRA_ERROR, "UnknownEnvironment", text)
            elif overdue := session.overdue(now):
                self._overdue(session, overdue)
        if self.pool.quarantine.ends(now):
            self._place_waiting()

    def _is_unknown(self, session: Session, now: float) -> bool:
        if self.pool.serves(session.environment):
            return False
        # A name that was served once may come back with its host: it waits for its whole queue_s.
        return now >= min(session.unknown_until, session.deadline)

    def _overdue(self, session: Session, text: str) -> None:
        host = session.host
        if host is not None and session.pending is not None:
            self._fault(host, session.environment, text)
        self._fail(session, TIMEOUT, "DeadlineExceeded", f"{session.environment}: {text}")

    # --- stopping and looking ----------------------------------------------------------------

    def drain(self, grace_s: float) -> None:
        """Take no new sessions; those under way may finish."""
        self.draining = True
        for host in self.pool.hosts.values():
            host.outbox.put(codec.drain(grace_s, "the gateway stops"))
        for session in list(self.sessions.values()):
            if session.state is State.QUEUED:
                self._fail(session, INFRA_ERROR, "EnvHostLost", "the gateway is stopping")

    def listing(self) -> Any:
        """ListEnvironmentsResponse of what attached hosts serve."""
        return codec.listing(self.pool.served())
