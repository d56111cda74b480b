"""Handles messages of clients; one that breaks the rules is answered with a refusal."""

from __future__ import annotations

from earl.obs.tracing import checked
from earl.v1 import env_pb2
from services.env_gateway import codec
from services.env_gateway.admission import opening_limits
from services.env_gateway.episodes import Episodes
from services.env_gateway.results import INFRA_ERROR, OK, TIMEOUT, TRUNCATED, UNSPECIFIED
from services.env_gateway.state.clients import ClientStream
from services.env_gateway.state.sessions import GatewaySession, SessionState, StepVerdict

MAX_QUEUE = 65_536


class ClientSide:
    """The clients' side of the gateway."""

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes
        self._pool = episodes.pool
        self._refused = episodes.counts.refused
        # Set when no new session may be opened.
        self.draining = False

    def handle(self, client: ClientStream, message: env_pb2.ClientMessage) -> None:
        """Handles one message of a client."""
        kind = message.WhichOneof("message")
        if kind == "step":
            self._step(client, message.step)
        elif kind == "open":
            self._open(client, message.open)
        elif kind == "close":
            self._close(client, message.close.session)
        elif kind == "cancel":
            session = client.sessions.get(message.cancel.session)
            if session is not None:
                text = f"cancelled: {message.cancel.reason}"
                self._episodes.fail(session, TIMEOUT, "DeadlineExceeded", text)
        else:
            self._refused["empty_message"] += 1

    def left(self, client: ClientStream) -> None:
        """Ends the sessions of a client whose stream has ended; there is nobody to tell."""
        # Those in the queue first: a place that becomes free must not go to one of them.
        queued_first = sorted(
            client.sessions, key=lambda n: client.sessions[n].state is not SessionState.QUEUED
        )
        for number in queued_first:
            self._close(client, number)

    def _open(self, client: ClientStream, opening: env_pb2.Open) -> None:
        number = opening.session
        limits_s, wrong = self._opening_limits(client, opening)
        if wrong:
            self._refuse(client, number, 0, INFRA_ERROR, "bad_open", wrong)
            return
        if self.draining:
            text = "the gateway is stopping"
            client.outbox.put(codec.failure(number, 0, INFRA_ERROR, "EnvHostLost", text))
            return
        now = self._episodes.clock()
        session_id = self._episodes.next_id()
        reset = codec.reset(session_id, opening, limits_s["reset_s"])
        session = GatewaySession(
            session_id,
            client,
            number,
            opening.environment,
            limits_s,
            now,
            reset,
            traceparent=checked(opening.traceparent),
            seats=max(1, opening.seats),
        )
        if not self._pool.ever_served(session.environment):
            session.unknown_until = now + min(self._episodes.config.lease_s, limits_s["queue_s"])
        client.opened(session)
        self._episodes.begin(session)

    def _opening_limits(self, client: ClientStream, opening: env_pb2.Open) -> tuple[dict[str, float], str]:
        """The limits, or what is wrong with the Open."""
        if wrong := client.refusal(opening.session):
            return {}, wrong
        if wrong := self._pool.refusal_of_seats(opening.environment, opening.seats):
            return {}, wrong
        if self._pool.waiting(opening.environment) >= MAX_QUEUE:
            return {}, f"{MAX_QUEUE} sessions wait for {opening.environment!r}"
        try:
            return opening_limits(opening, self._episodes.config.max_text_bytes), ""
        except ValueError as error:
            return {}, str(error)

    def _step(self, client: ClientStream, step: env_pb2.Step) -> None:
        number, seq = step.session, step.seq
        session = client.sessions.get(number)
        if session is None:
            text = f"session {number} is not open on this stream"
            self._refuse(client, number, seq, INFRA_ERROR, "unknown_session", text)
            return
        verdict = session.judge_step(seq)
        if verdict is StepVerdict.FORWARD or verdict is StepVerdict.HOLD:
            size_bytes, max_bytes = step.ByteSize(), self._episodes.config.max_text_bytes
            if size_bytes > max_bytes:
                text = f"action of {size_bytes} bytes is larger than {max_bytes}"
                self._refuse(client, number, seq, UNSPECIFIED, "oversize_action", text)
            elif verdict is StepVerdict.HOLD:
                session.held = step
            else:
                message = codec.step(step, session.id, session.limits_s["step_s"])
                session.start_step(message, self._episodes.clock())
                session.host.outbox.put(message)
        elif verdict is StepVerdict.REPEAT:
            client.outbox.put(session.answer)
        elif verdict is StepVerdict.REFUSE:
            self._wrong_step(client, session, seq)

    def _wrong_step(self, client: ClientStream, session: GatewaySession, seq: int) -> None:
        number = session.number
        if session.state is not SessionState.ENDED:
            text = f"step {seq} of session {number} follows {session.seq} ({session.state.value})"
        elif session.answer is not None and session.answer.result.ending not in (OK, TRUNCATED):
            # It failed while the client was not waiting for anything.
            client.outbox.put(codec.failed_again(session.answer, seq))
            return
        else:
            text = f"session {number} has ended"
        self._refuse(client, number, seq, UNSPECIFIED, "wrong_step", text)

    def _refuse(
        self, client: ClientStream, number: int, seq: int, ending: int, reason: str, text: str
    ) -> None:
        self._refused[reason] += 1
        client.outbox.put(codec.failure(number, seq, ending, "EnvProtocolError", text))

    def _close(self, client: ClientStream, number: int) -> None:
        session = client.forget(number)
        if session is not None and session.state is not SessionState.ENDED:
            self._episodes.release(session)
