"""The agent loop: plays one ticket, or the tickets of a match, to one finished episode.

    open session ─► observation ─► ids (mask 0) ─► action ids (mask 1) ─► text ─► session.step ─┐
                        ▲                                                                       │
                        └────────────────── until done, max_turns, or the context is full ◄─────┘

In a match the policy has several seats of one session. Each has a context, a sampler and rewards of its own;
an observation goes to the seat that it names, and no seat sees another's. The episode ends for all at once.
Where a frozen version plays all seats but the ticket's, what those saw and did is forgotten at the end.

Promise: token in, token out (what was generated is what is stored); every ending is typed; a failure
of the infrastructure is an ending of its own and never a reward; `play` raises nothing but
cancellation and programming errors.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from earl.env.base import Ending, Limits, Observation
from earl.env.session import ending_of
from earl.errors import DeadlineExceeded, EarlError, EngineError, EnvironmentFailure
from earl.obs import tracing
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.episode.columns import TokenColumns
from services.rollout.episode.transcript import conversation
from services.rollout.pool.awake_time import AwakeTime
from services.rollout.worker.actions import (
    AgentBounds,
    Choose,
    Sampler,
    Truncated,
    imitate,
    imitate_recorded,
    sampled,
    scripted,
    session_name,
)
from services.rollout.worker.draft_history import DraftHistory
from services.rollout.worker.ticket import EpisodeOutcome, EpisodeTicket

# A session's bound at the gateway, of a run whose engines sleep, in bounds of its episode.
SLEEPING_SESSIONS = 10


class SamplingPolicy(Sampler, Protocol):
    """The policy that is trained: services.rollout.pool.pool.EnginePool."""

    async def wait_version(self, version: int) -> None: ...


class Opponent(Sampler, Protocol):
    """Plays frozen versions: services.rollout.worker.frozen_opponent.FrozenOpponent."""

    def playing(self, version: int) -> AbstractAsyncContextManager[None]: ...


class VersionPins(Protocol):
    """Holds the policy at a version: services.rollout.worker.pinned_weights.PinnedWeights."""

    def playing(self, version: int) -> AbstractAsyncContextManager[None]: ...


class EnvSession(Protocol):
    """One episode at the gateway: earl.env.session.Session."""

    observation: Observation

    async def step(self, action: str) -> Any: ...

    async def close(self) -> None: ...


class EnvSessions(Protocol):
    """Opens sessions: earl.env.session.GatewayClient."""

    async def open(
        self, environment: str, task: dict, seed: int, limits: Limits, *, traceparent: str = "",
        seats: int = 1, tools: Sequence[str] = (),
    ) -> EnvSession: ...  # fmt: skip


class _SlowTurn(DeadlineExceeded):
    """A turn took longer than the run's own bound."""


# Part of an episode's reward by which rounding may lead it out of its range.
REWARD_MARGIN = 1e-6
# Seeds of tickets are below it; those of a frozen opponent are not.
FROZEN_BIT = 1 << 63


@dataclass(slots=True)
class _Seat:
    """One seat while its episode runs. policy: plays it. observed: gets (role, text) of each of its
    observations; None if nobody reads them."""

    ticket: EpisodeTicket
    outcome: EpisodeOutcome
    choose: Choose
    policy: Sampler
    observed: list[tuple[str, str]] | None

    @property
    def columns(self) -> TokenColumns:
        return self.outcome.columns


class EpisodeAgent:
    """Plays any number of tickets at once; holds what all episodes share.

    bounds: by the label of the environment. opponent: None where no ticket names a frozen version.
    awake_time: in which episodes are bounded; None if their engines never sleep. history: what engines draft
    from; None if they draft nothing. pins: None where no ticket is pinned to a version.
    """

    def __init__(
        self,
        policy: SamplingPolicy,
        sessions: EnvSessions,
        spans: BusySpans,
        bounds: Mapping[str, AgentBounds],
        opponent: Opponent | None = None,
        awake_time: AwakeTime | None = None,
        history: DraftHistory | None = None,
        pins: VersionPins | None = None,
    ) -> None:
        self._policy = policy
        self._time = awake_time or AwakeTime()
        self._sleeps = awake_time is not None
        self._opponent = opponent
        self._sessions = sessions
        self._spans = spans
        self._bounds = bounds
        self._history = history
        self._pins = pins
        # Totals since the start, for gauges.
        self.steps = 0
        self.step_wait_s = 0.0

    async def play(self, ticket: EpisodeTicket) -> EpisodeOutcome:
        """Runs the episode within ticket.episode_s. Cancelling closes the session and aborts the engine."""
        attributes = {"ticket": ticket.ticket_id, "attempt": ticket.attempt}
        with tracing.span("rollout episode", ticket.traceparent, attributes) as traceparent:
            return await self._play(ticket, traceparent)

    async def _play(self, ticket: EpisodeTicket, traceparent: str) -> EpisodeOutcome:
        bounds = self._bounds[ticket.label]
        learners = [self._seat(each, bounds, self._policy) for each in ticket.seats]
        outcome = learners[0].outcome
        outcome.others = tuple(seat.outcome for seat in learners[1:])
        try:
            async with (
                self._time.timeout(ticket.episode_s),
                self._at_version(ticket, outcome),
                self._against(ticket, outcome),
            ):
                seats = self._with_opponent(ticket, learners, bounds)
                await self._episode(ticket, seats, outcome, bounds, traceparent)
        except Truncated as truncated:
            outcome.ending, outcome.message = Ending.TRUNCATED, str(truncated)
        except TimeoutError:
            if not outcome.message:  # the episode had begun
                outcome.ending = self._slow(ticket, outcome)
                outcome.message = f"episode took longer than {ticket.episode_s:g} s"
        except _SlowTurn as error:
            outcome.ending, outcome.message = self._slow(ticket, outcome), f"{error.message}; {error.remedy}"
        except EarlError as error:
            outcome.ending, outcome.message = ending_of(error), f"{type(error).__name__}: {error}"
        self._settle(outcome, bounds)
        for seat in learners:
            if seat.observed is not None:
                tokenizer = bounds.tokenizer
                seat.outcome.transcript = conversation(
                    tokenizer.system, seat.observed, seat.columns, tokenizer.decode, tokenizer.opening
                )
        return outcome

    @asynccontextmanager
    async def _at_version(self, ticket: EpisodeTicket, outcome: EpisodeOutcome) -> AsyncIterator[None]:
        """The policy has a version that may play the ticket. The outcome has a message while it has not."""
        # The policy samples nothing before its first version is loaded.
        version = ticket.pinned_version or max(ticket.min_version, 0 if ticket.scripted else 1)
        late = f"version {version} did not arrive within {ticket.episode_s:g} s"
        if not ticket.pinned_version:
            if self._policy.version < version:
                outcome.message = late
                await self._policy.wait_version(version)
            yield
            return
        if self._pins is None:
            raise EngineError(
                f"ticket {ticket.ticket_id} is pinned to version {version}, and this worker takes the newest",
                "start it with the run file of its run",
            )
        outcome.message = late
        async with self._pins.playing(version):
            yield

    @asynccontextmanager
    async def _against(self, ticket: EpisodeTicket, outcome: EpisodeOutcome) -> AsyncIterator[None]:
        """The ticket's opponent is there. The outcome has a message while it is not."""
        if not ticket.frozen_version:
            outcome.message = ""
            yield
            return
        if self._opponent is None:
            raise EngineError(
                f"ticket {ticket.ticket_id} is played against version {ticket.frozen_version}, and this "
                "worker has no engines for a frozen version",
                "start it with the run file of its run",
            )
        outcome.message = f"frozen version {ticket.frozen_version} did not arrive in time"
        async with self._opponent.playing(ticket.frozen_version):
            outcome.message = ""
            yield

    def _with_opponent(
        self, ticket: EpisodeTicket, learners: Sequence[_Seat], bounds: AgentBounds
    ) -> Sequence[_Seat]:
        """All seats of the session, in their order: the learners', and those of a frozen opponent."""
        if not ticket.frozen_version or self._opponent is None:
            return learners
        seats = [
            self._seat(frozen_seat(ticket, place), bounds, self._opponent)
            for place in range(ticket.session_seats)
        ]
        seats[ticket.seat] = learners[0]
        return seats

    def _settle(self, outcome: EpisodeOutcome, bounds: AgentBounds) -> None:
        """Checks what a finished episode earned, and gives all seats its ending."""
        least, most = bounds.rewards
        for seat in outcome.seats:
            margin = REWARD_MARGIN * max(1.0, abs(seat.reward))
            if outcome.trainable and not least - margin <= seat.reward <= most + margin:
                outcome.ending = Ending.ENV_ERROR
                outcome.message = f"an episode earned {seat.reward:g}, outside of [{least:g}, {most:g}]"
        if outcome.ending is Ending.TRUNCATED and not outcome.acted:
            # Nothing to train on: the task itself does not fit, and another attempt would not help.
            outcome.ending = Ending.ENV_ERROR
        for seat in outcome.seats:
            seat.ending, seat.message = outcome.ending, outcome.message
            if outcome.trainable and not len(seat.columns):
                seat.columns.sit_out(self._policy.version)

    def _seat(self, ticket: EpisodeTicket, bounds: AgentBounds, policy: Sampler) -> _Seat:
        if ticket.scripted:
            choose = scripted(ticket, bounds, policy)
        else:
            # A frozen opponent plays as another policy once wrote.
            choose = sampled(ticket, bounds, policy, self._history if policy is self._policy else None)
        observed = [] if ticket.transcript else None
        return _Seat(ticket, EpisodeOutcome(Ending.INFRA_ERROR), choose, policy, observed)

    async def _episode(
        self, ticket: EpisodeTicket, seats: Sequence[_Seat], outcome: EpisodeOutcome, bounds: AgentBounds,
        traceparent: str,
    ) -> None:  # fmt: skip
        """Fills the seats' outcomes; ending and message of `outcome` are the episode's."""
        if ticket.recorded:
            for seat in seats:
                imitate_recorded(seat.ticket, seat.policy, seat.columns)
                seat.outcome.reward = seat.ticket.recorded_reward
            outcome.ending = Ending.OK
            return
        task = _task(ticket)
        messages = task.pop(bounds.demonstrations, None) if bounds.demonstrations else None
        if ticket.scripted and messages is not None:
            # Nobody earns anything; the range of rewards may leave 0 out.
            outcome.reward = min(max(0.0, bounds.rewards[0]), bounds.rewards[1])
            imitate(messages, ticket, bounds, self._policy, outcome.columns, seats[0].observed)
            outcome.ending = Ending.OK
            return
        limits = replace(bounds.limits, episode_s=self._session_s(ticket))
        with tracing.span("rollout open", traceparent):
            session = await self._sessions.open(
                ticket.environment, task, ticket.env_seed, limits, traceparent=traceparent,
                seats=len(seats), tools=bounds.tools,
            )  # fmt: skip
        try:
            observation = session.observation
            while True:
                seat = seats[observation.seat]
                if seat.columns.turns_taken >= ticket.max_turns:
                    raise Truncated(f"max_turns {ticket.max_turns} reached")
                if seat.observed is not None:
                    seat.observed.append((observation.role, observation.text))
                result = await self._turn(session, seat, observation, bounds.turn_s, traceparent)
                _pay(ticket, seats, result)
                if result.done:
                    outcome.ending, outcome.message = result.ending, result.message
                    for place, each in enumerate(seats):
                        each.outcome.metrics = _metrics(result, place)
                    return
                observation = result.observation
        finally:
            for seat in seats:
                if not ticket.scripted:
                    await seat.policy.release(session_name(seat.ticket))
            await session.close()

    async def _turn(
        self,
        session: EnvSession,
        seat: _Seat,
        observation: Observation,
        turn_s: float,
        traceparent: str,
    ) -> Any:
        """An action and the step that it takes. Raises _SlowTurn after turn_s, if that is not 0."""
        turn = seat.columns.turns_taken

        async def taken() -> Any:
            with tracing.span("rollout act", traceparent, {"turn": turn}):
                text = await seat.choose(observation, seat.columns)
            with tracing.span("rollout step", traceparent, {"turn": turn}):
                return await self._step(session, text)

        if not turn_s:
            return await taken()
        slow = _SlowTurn(f"turn {turn + 1} took longer than {turn_s:g} s", "raise scheduler.turn_s")
        async with self._time.deadline(turn_s, slow):
            return await taken()

    def _session_s(self, ticket: EpisodeTicket) -> float:
        """The bound of the session at the gateway, whose time does not stand still while engines sleep."""
        return ticket.episode_s * (SLEEPING_SESSIONS if self._sleeps else 1)

    def _slow(self, ticket: EpisodeTicket, outcome: EpisodeOutcome) -> Ending:
        """The ending of an episode that exceeded a bound of its own. What the infrastructure fails to do in
        time is never one of these."""
        truncates = self._bounds[ticket.label].truncates and outcome.acted
        return Ending.TRUNCATED if truncates else Ending.TIMEOUT

    async def _step(self, session: EnvSession, text: str) -> Any:
        before_ns = time.time_ns()
        self._spans.enter("env", before_ns)
        try:
            return await session.step(text)
        finally:
            now_ns = time.time_ns()
            self._spans.leave("env", now_ns)
            self.step_wait_s += (now_ns - before_ns) * 1e-9
            self.steps += 1


def frozen_seat(ticket: EpisodeTicket, seat: int) -> EpisodeTicket:
    """The ticket as a seat of its frozen opponent goes by it."""
    sample_seed = FROZEN_BIT | (ticket.sample_seed ^ seat)
    return replace(ticket, seat=seat, sample_seed=sample_seed, transcript=False)


def _pay(ticket: EpisodeTicket, seats: Sequence[_Seat], result: Any) -> None:
    """Adds a step's rewards to the seats' outcomes. Raises EnvironmentFailure unless they are finite."""
    rewards = result.seat_rewards if len(seats) > 1 else (result.reward,)
    if not all(map(math.isfinite, rewards)):
        text = f"environment {ticket.environment} gave reward {', '.join(map(str, rewards))}"
        raise EnvironmentFailure(text, "return finite rewards")
    for seat, reward in zip(seats, rewards or (0.0,) * len(seats), strict=True):
        seat.outcome.reward += reward
        seat.columns.earn(reward)


def _metrics(result: Any, seat: int) -> Mapping[str, float]:
    """The metrics of a seat: the episode's where seats have none of their own."""
    return result.seat_metrics[seat] if result.seat_metrics else result.metrics


def _task(ticket: EpisodeTicket) -> dict:
    try:
        task = json.loads(ticket.task_json or "{}")
    except ValueError as error:
        raise EnvironmentFailure(f"task of ticket {ticket.ticket_id} is not JSON: {error}") from error
    if not isinstance(task, dict):
        raise EnvironmentFailure(
            f"task of ticket {ticket.ticket_id} is not a JSON object: {ticket.task_json!r}"
        )
    return task
