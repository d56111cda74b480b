"""Handles messages of env hosts. Whatever breaks the rules is refused and counted, a fault of
its host alone, and changes nothing else.

    Hello ─► attach ─► mark_alive, handle … ─► detach ─► back within reconnect_s, or lost
"""

from __future__ import annotations

import logging
import math
from typing import Any

from earl.env import stream_codec
from earl.errors import EarlError, EnvHostLost, EnvProtocolError
from earl.v1 import env_pb2
from services.env_gateway import codec
from services.env_gateway.admission import MAX_CAPACITY, check_hello
from services.env_gateway.episodes import Episodes
from services.env_gateway.results import ENV_ERROR, INFRA_ERROR, OK, TRUNCATED, fault_in, rewards_of
from services.env_gateway.state.pool import HostState
from services.env_gateway.state.sessions import Arrival, GatewaySession

log = logging.getLogger(__name__)

# Progress is dropped rather than queued behind this many unread messages.
PROGRESS_BACKLOG = 1_000
MAX_PROGRESS = 1_024


class HostSide:
    """The hosts' side of the gateway."""

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes
        self._counts = episodes.counts
        self._pool = episodes.pool

    # --- streams -----------------------------------------------------------------------------

    def attach(self, hello: env_pb2.Hello, outbox: Any) -> HostState:
        """Accepts a host's stream. Raises EnvProtocolError or DuplicateEnvironment; nothing changed then."""
        try:
            check_hello(hello)
            served = [codec.decode_environment(info) for info in hello.environments]
            environments = self._pool.check(hello.host, hello.instance, hello.epoch, served)
        except EnvProtocolError as error:
            self._counts.refused[f"hello: {type(error).__name__}"] += 1
            log.warning("host %r refused: %s", hello.host, error)
            raise
        now = self._episodes.clock()
        host = self._pool.hosts.get(hello.instance)
        new = host is None
        if host is None:
            host = HostState(
                hello.host, hello.instance, hello.epoch, environments, hello.capacity, outbox, now
            )
            former = self._pool.namesakes(host)
        else:
            former = []
            self._counts.totals["reconnects"] += 1
            host.outbox.close(EnvProtocolError(f"fenced by epoch {hello.epoch} of the same host"))
            host.name, host.epoch, host.outbox = hello.host, hello.epoch, outbox
            host.environments, host.capacity, host.last_seen_s = environments, hello.capacity, now
            host.draining, host.back_by = False, math.inf
        config = self._episodes.config
        # Nothing comes before it: what a lost namesake leaves may be placed here at once.
        outbox.put(
            stream_codec.welcome(
                config.lease_s, config.max_text_bytes, list(host.sessions), config.max_action_characters
            )
        )
        for session in host.sessions.values():
            if session.pending is not None:
                outbox.put(session.pending)
        self._pool.add(host)
        for namesake in former:
            self.lose(namesake, "was started again")
        if new:
            self._pool.quarantine.started_again(host.name, now)
        log.info("host %s attached", host.name, extra={"fields": {"epoch": host.epoch}})
        self._episodes.place_waiting()
        return host

    def _current(self, host: HostState, epoch: int) -> bool:
        """Returns whether that stream of the host is the newest, of a host that is not lost."""
        return host.epoch == epoch and self._pool.hosts.get(host.instance) is host

    def detach(self, host: HostState, epoch: int) -> None:
        """Takes note that a host's stream has ended.

        After a Drain it has left, otherwise it may return soon.
        """
        if not self._current(host, epoch):
            return
        if host.draining or not host.sessions:
            self.lose(host, "left")
        else:
            host.back_by = self._episodes.clock() + self._episodes.config.reconnect_s

    def broke(self, host: HostState, epoch: int, error: EarlError) -> None:
        """The host's stream cannot be understood any further: that is the end of it, whatever it held."""
        if not self._current(host, epoch):
            return
        self._refuse(host, "", "broken_stream")
        self.lose(host, f"broke the protocol: {error.message}")

    def lose(self, host: HostState, reason: str) -> None:
        self._episodes.host_lost(host, reason)
        host.outbox.close(EnvHostLost(f"host {host.name} {reason}", "connect again"))

    # --- messages ----------------------------------------------------------------------------

    def mark_alive(self, host: HostState, epoch: int) -> None:
        """Anything that arrives on the host's stream renews its lease."""
        if host.epoch == epoch:
            host.last_seen_s = self._episodes.clock()

    def handle(self, host: HostState, epoch: int, message: env_pb2.HostMessage) -> None:
        """Handles one message of a host. Raises EnvProtocolError on a fenced stream."""
        if host.epoch != epoch:
            self._counts.refused["fenced"] += 1
            raise EnvProtocolError(f"epoch {epoch} of host {host.name} is fenced by {host.epoch}")
        kind = message.WhichOneof("message")
        if kind == "result":
            self._result(host, message.result)
        elif kind == "progress":
            self._progress(host, message.progress)
        elif kind == "credit":
            host.capacity = min(message.credit.capacity, MAX_CAPACITY)
            self._episodes.place_waiting()
        elif kind == "drain":
            host.draining = True
            log.info("host %s drains: %s", host.name, message.drain.reason)
        elif kind != "pong":
            self._refuse(host, "", f"unexpected {kind or 'empty message'}")

    def _result(self, host: HostState, result: env_pb2.Result) -> None:
        session = self._expecting(host, result)
        if session is None:
            return
        served = host.environments.get(session.environment)
        bounds = served.bounds if served else None
        wrong = fault_in(result, self._episodes.config.max_text_bytes, bounds, session.returns)
        if wrong:
            self._counts.refused["bad_result"] += 1
            self._episodes.fault(host, session.environment, wrong)
            self._episodes.fail(session, ENV_ERROR, "EnvProtocolError", wrong)
        elif session.repeats_reset:
            self._reset_again(session, result)
        else:
            self._pass_on(session, result)

    def _expecting(self, host: HostState, result: env_pb2.Result) -> GatewaySession | None:
        """The session that waits for just this result; None if it was refused."""
        session = self._episodes.sessions.get(result.session)
        if session is None:
            self._counts.refused["late_result"] += 1
            return None
        if session.host is not host:
            self._refuse(host, session.environment, "foreign_session")
            return None
        arrival = session.judge_result(result.seq)
        if arrival is Arrival.LATE:
            self._counts.refused["late_result"] += 1
        elif arrival is Arrival.AHEAD:
            self._refuse(host, session.environment, "wrong_seq")
        return session if arrival is Arrival.ANSWER else None

    def _pass_on(self, session: GatewaySession, result: env_pb2.Result) -> None:
        host = session.host
        result.session = session.number
        result.queue_s = session.queue_s if session.seq == 0 else 0.0
        result.host_s = self._episodes.clock() - session.sent_at
        self._counts.answered(session.environment, session.seq, result.host_s)
        self._episodes.trace(session, "step" if session.seq else "reset", result.host_s)
        session.rewarded(rewards_of(result, session.seats))
        session.answer = codec.result(result)
        session.client.outbox.put(session.answer)
        session.answered(result.done)
        self._counts.totals["results"] += 1
        if result.done:
            if result.ending in (OK, TRUNCATED):
                self._pool.quarantine.success((host.name, session.environment))
            else:
                self._episodes.fault(host, session.environment, result.message)
            self._episodes.release(session)

    def _reset_again(self, session: GatewaySession, result: env_pb2.Result) -> None:
        """The client acts on what the lost host showed: the same, or the session cannot continue."""
        if result.done or result.observation != session.answer.result.observation:
            text = f"its host was lost before the first step, and {session.host.name} does not show the same"
            self._episodes.fail(session, INFRA_ERROR, "EnvHostLost", text)
            return
        session.answered(done=False)
        step = session.held
        if step is not None:
            now = self._episodes.clock()
            self._episodes.tell_alive(session, "the episode began again on another host")
            message = codec.step(step, session.id, session.limits_s["step_s"])
            session.start_step(message, now)
            session.host.outbox.put(message)

    def _progress(self, host: HostState, progress: env_pb2.Progress) -> None:
        session = self._episodes.sessions.get(progress.session)
        now = self._episodes.clock()
        if session is None or session.host is not host or not session.progressed(progress.seq, now):
            self._counts.refused["late_progress"] += 1
            return
        outbox = session.client.outbox
        if len(outbox) < PROGRESS_BACKLOG and len(progress.message) <= MAX_PROGRESS:
            outbox.put(codec.alive(session.number, progress.seq, progress.message))

    def _refuse(self, host: HostState, environment: str, reason: str) -> None:
        self._counts.refused[reason] += 1
        log.warning("refused a message of host %s: %s", host.name, reason)
        for name in [environment] if environment in host.environments else host.environments:
            self._episodes.fault(host, name, reason)
