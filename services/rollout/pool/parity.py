"""Checks that two engines are the same policy: log-probs of fixed prompts, compared within a tolerance.

    old engine ──► log-prob of the greedy token after each prompt ──┐
    every new engine, at the same version ──► the same ─────────────┴─► largest difference
    one session whose KV was handed over ──► the same, so that the hand-over itself is judged

The log-prob of the likeliest token is compared, not the token: two that are equally likely may change places.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from earl.errors import EngineError
from services.rollout.engines.contract.engine import Engine, GenerateRequest

PROMPTS, PROMPT_TOKENS = 4, 12
# Tokens of the session: more than one block of any engine's prefix cache.
SESSION_TOKENS = 48


class ParityLost(EngineError):
    """New engines give other log-probs than the old ones with the same weights."""


@dataclass(slots=True)
class ParityCheck:
    """The comparisons of one change of engines. tolerance: of a log-prob, in nats. about: the change, and
    consequence, for the error's text.

    largest_difference: of the log-probs compared so far, in nats; compared: how many those are.
    """

    tolerance: float
    about: str
    consequence: str
    largest_difference: float = 0.0
    compared: int = 0

    def check(self, engine: str, what: str, before: float, after: float) -> None:
        """Compares a log-prob of an old engine with a new one's. Raises ParityLost."""
        apart = difference(before, after)
        self.largest_difference = max(apart, self.largest_difference)
        self.compared += 1
        if apart > self.tolerance:
            raise ParityLost(
                f"{self.about}: engine {engine} differs by {apart:.3g} in the log-prob of "
                f"{what}, more than {self.tolerance:g}",
                f"{self.consequence}; its kernels or its weights are wrong",
            )

    def prompts(self, engine: str, before: Sequence[float], after: Sequence[float]) -> None:
        """Compares the log-probs of the canary prompts. Raises ParityLost."""
        for old, new in zip(before, after, strict=True):
            self.check(engine, "a canary prompt", old, new)


@dataclass(frozen=True, slots=True)
class CanaryScores:
    """Log-probs of an old engine: of each prompt's next token, and of the session's token after `follow`."""

    prompts: tuple[float, ...]
    session: float
    follow: int


class Canary:
    """The fixed prompts and the session of one switch. name: of the session. Token ids are spread over the
    vocabulary."""

    def __init__(self, name: str, vocabulary: int, context_tokens: int) -> None:
        self.session = name
        self._made = 0

        self._vocabulary, self._context_tokens = vocabulary, context_tokens
        self._prompts = [self._prompt(seed, PROMPT_TOKENS) for seed in range(1, PROMPTS + 1)]
        self._context = self._prompt(0, SESSION_TOKENS)

    async def score(self, engine: Engine) -> CanaryScores | None:
        """Scores an old engine, which keeps the session's KV. None if it was interrupted."""
        prompts = await asyncio.gather(*(self._next(engine, ids) for ids in self._prompts))
        first = await self._next(engine, self._context, self.session)
        if first is None or None in prompts:
            return None
        follow = first[0]
        second = await self._next(engine, [*self._context, follow], self.session)
        if second is None:
            return None
        return CanaryScores(tuple(scored[1] for scored in prompts if scored is not None), second[1], follow)

    async def score_prompts(self, engine: Engine) -> tuple[float, ...]:
        """The prompts' log-probs on a new engine; NaN where it gave no answer."""
        return tuple(map(_logprob, await asyncio.gather(*(self._next(engine, ids) for ids in self._prompts))))

    async def score_session(self, engine: Engine, follow: int) -> float:
        """The session's log-prob on a new engine, which may have taken its KV; NaN if it gave no answer."""
        return _logprob(await self._next(engine, [*self._context, follow], self.session))

    async def compute(self, engine: Engine, tokens: int) -> None:
        """Lets an engine compute a prompt of so many tokens that is none of those that are scored."""
        await self._next(engine, self._prompt(PROMPTS + 1, tokens))

    def _prompt(self, seed: int, tokens: int) -> list[int]:
        count = max(1, min(tokens, self._context_tokens // 2))
        return [(seed * 7919 + position * 104_729 + 13) % self._vocabulary for position in range(count)]

    async def _next(self, engine: Engine, ids: list[int], session: str = "") -> tuple[int, float] | None:
        """(greedy token, its log-prob), or None if the request was aborted."""
        self._made += 1
        request = GenerateRequest(
            request_id=f"{self.session} {self._made}",
            ids=ids,
            max_new_tokens=1,
            temperature=0.0,
            session=session,
        )
        answer = await engine.generate_all(request)
        return (answer.ids[0], answer.logprobs[0]) if answer.ids else None


def _logprob(scored: tuple[int, float] | None) -> float:
    return math.nan if scored is None else scored[1]


def difference(ours: float, theirs: float) -> float:
    """The distance of two log-probs; infinite if either is not a number."""
    apart = abs(ours - theirs)
    return math.inf if math.isnan(apart) else apart
