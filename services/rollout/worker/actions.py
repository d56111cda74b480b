"""Chooses a seat's actions: an engine samples them, or they are drawn from the legal ones.

    observation ─► ids (mask 0) ─► action ids (mask 1) ─► text

Each appends to the seat's columns what it observed and did. What no longer fits truncates the episode.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from earl.config.demonstrations import demonstration
from earl.env.base import Limits, Observation
from earl.errors import ContextTooLong, EngineError, EnvironmentFailure
from services.rollout.engines.contract.engine import GenerateRequest, Generation
from services.rollout.episode.columns import TokenColumns
from services.rollout.episode.tokenizer_cache import TokenizerCache
from services.rollout.worker.draft_history import DraftHistory, References
from services.rollout.worker.ticket import EpisodeTicket

# Chooses the action for an observation, and appends both to the columns.
Choose = Callable[[Observation, TokenColumns], Awaitable[str]]


class Sampler(Protocol):
    """Samples tokens: the pool of engines, or a frozen opponent."""

    @property
    def version(self) -> int: ...

    async def generate(self, request: GenerateRequest) -> Generation: ...

    async def release(self, session: str) -> None: ...


class Truncated(Exception):
    """The episode ends here and is trained on; its text is the outcome's message."""


@dataclass(frozen=True, slots=True)
class AgentBounds:
    """The bounds of an environment's episodes.

    limits: of a session; episode_s is replaced by the ticket's. max_context_tokens bounds a whole trajectory,
    max_new_tokens one answer. tokenizer: begins with the environment's system message. turn_s: of an answer
    and the step that it takes, in seconds, 0 for no bound. truncates: slow episodes are truncated, and do not
    fail. rewards: the least and the most that an episode may earn. tools: names of those that the policy may
    call, all if empty. demonstrations: the key of a task under which its conversation lies that scripted
    episodes imitate; "" where they play.
    """

    limits: Limits
    max_context_tokens: int
    max_new_tokens: int
    tokenizer: TokenizerCache
    turn_s: float = 0.0
    truncates: bool = False
    rewards: tuple[float, float] = (-math.inf, math.inf)
    tools: Sequence[str] = ()
    demonstrations: str = ""


def sampled(
    ticket: EpisodeTicket, bounds: AgentBounds, policy: Sampler, history: DraftHistory | None = None
) -> Choose:
    """Returns the function that chooses actions: an engine samples them at ticket.temperature with
    ticket.filters, and drafts from the history, if there is one."""
    most, tokenizer, name = bounds.max_new_tokens, bounds.tokenizer, session_name(ticket)

    async def choose(observation: Observation, columns: TokenColumns) -> str:
        left = _observe(observation, columns, bounds, policy)
        references = history.references(ticket, name) if history is not None else References([], 0)
        request = GenerateRequest(
            request_id=f"{name}/{columns.turns_taken}",
            ids=columns.tokens,
            max_new_tokens=min(most, left),
            temperature=ticket.temperature,
            seed=ticket.sample_seed,
            filters=ticket.filters,
            session=name,
            references=references.ids,
            task_references=references.of_task,
        )
        try:
            answer = await policy.generate(request)
        except ContextTooLong as error:
            raise Truncated(str(error)) from error
        if answer.finish == "abort":
            raise EngineError(f"generation {request.request_id} was aborted by its engine")
        columns.act(answer.ids, answer.logprobs, answer.versions)
        if history is not None:
            history.note(ticket, name, columns.tokens, len(answer.ids))
        if answer.finish == "length" and left < most:
            raise Truncated(f"context full: {len(columns)} of {bounds.max_context_tokens} tokens")
        # Special tokens are not part of the text; a stop token that is a word of the action is.
        return tokenizer.opening + tokenizer.decode(answer.ids)

    return choose


def scripted(ticket: EpisodeTicket, bounds: AgentBounds, policy: Sampler) -> Choose:
    """Returns the function that chooses actions: drawn uniformly from the legal ones, reproducible from
    ticket.sample_seed."""
    draw = random.Random(ticket.sample_seed).random

    async def choose(observation: Observation, columns: TokenColumns) -> str:
        legal = observation.legal_actions
        if not legal:
            raise EnvironmentFailure(
                f"environment {ticket.environment} lists no legal actions",
                "scripted play needs Observation.legal_actions",
            )
        left = _observe(observation, columns, bounds, policy)
        text = legal[int(draw() * len(legal))]
        ids = bounds.tokenizer.encode_action(text)
        if len(ids) > left:
            raise Truncated(f"context full: an action of {len(ids)} tokens exceeds the {left} left")
        columns.act_scripted(ids, policy.version)
        return text

    return choose


def imitate(
    messages: object,
    ticket: EpisodeTicket,
    bounds: AgentBounds,
    policy: Sampler,
    columns: TokenColumns,
    observed: list[tuple[str, str]] | None,
) -> None:
    """Fills the columns with a demonstrated conversation, and `observed` with (role, text) of what the
    environment says in it. Raises EnvironmentFailure for what is no conversation, Truncated where it is cut.
    """
    try:
        turns = demonstration(messages)
    except ValueError as error:
        raise EnvironmentFailure(
            f"{bounds.demonstrations!r} of ticket {ticket.ticket_id} is no conversation: {error}",
            "run scheduler and rollout worker from one run file",
        ) from error
    for turn in turns:
        if columns.turns_taken >= ticket.max_turns:
            raise Truncated(f"max_turns {ticket.max_turns} reached")
        if observed is not None:
            observed.append((turn.role, turn.text))
        left = _observe(Observation(turn.text, role=turn.role), columns, bounds, policy)
        ids = bounds.tokenizer.encode_action(turn.answer)
        if len(ids) > left:
            raise Truncated(f"context full: an answer of {len(ids)} tokens exceeds the {left} left")
        columns.act_scripted(ids, policy.version)


def imitate_recorded(ticket: EpisodeTicket, policy: Sampler, columns: TokenColumns) -> None:
    """Fills the columns with the turns that the ticket brings, id by id."""
    for turn in ticket.recorded:
        columns.observe(turn.observed, policy.version)
        columns.act_scripted(turn.acted, policy.version)


def session_name(ticket: EpisodeTicket) -> str:
    """The name of a seat's context at its engines. A frozen opponent's seats are of one ticket."""
    name = f"{ticket.ticket_id}/{ticket.attempt}"
    return f"{name}/{ticket.seat}" if ticket.frozen_version else name


def _observe(observation: Observation, columns: TokenColumns, bounds: AgentBounds, policy: Sampler) -> int:
    """Appends the observation; returns the tokens left for the action, at least 1."""
    tokens = columns.tokens
    after = tokens[-1] if tokens else None
    ids = bounds.tokenizer.encode_observation(observation.text, not tokens, observation.role, after)
    left = bounds.max_context_tokens - len(columns.tokens) - len(ids)
    if left < 1:
        raise Truncated(
            f"context full: {len(columns)} tokens and an observation of {len(ids)}"
            f" exceed {bounds.max_context_tokens}"
        )
    columns.observe(ids, policy.version)
    return left
