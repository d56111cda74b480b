"""Whether two engines are the same policy: what they say to fixed prompts, within a tolerance.

    old engine ──► log-prob of the greedy token after each prompt ──┐
    every new engine, at the same version ──► the same ─────────────┴─► largest difference
    one session whose KV was handed over ──► the same, so that the hand-over itself is judged

The log-prob of the likeliest token is compared, not the token: two that are equally likely may change places.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from services.rollout.engines.contract.engine import Engine, GenerateRequest

PROMPTS, PROMPT_TOKENS = 4, 12
# Of the session: more than one block of any engine's prefix cache.
SESSION_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Answers:
    """Log-probs: of each prompt's next token, and of the session's token after `follow`."""

    prompts: tuple[float, ...]
    session: float
    follow: int


class Canary:
    """The prompts of one switch. name: of the session. Token ids are spread over the vocabulary."""

    def __init__(self, name: str, vocabulary: int, context_tokens: int) -> None:
        self.session = name
        self._made = 0

        def prompt(seed: int, tokens: int) -> list[int]:
            count = max(1, min(tokens, context_tokens // 2))
            return [(seed * 7919 + position * 104_729 + 13) % vocabulary for position in range(count)]

        self._prompts = [prompt(seed, PROMPT_TOKENS) for seed in range(1, PROMPTS + 1)]
        self._context = prompt(0, SESSION_TOKENS)

    async def hear(self, engine: Engine) -> Answers | None:
        """What the engine says; the session's KV stays there. None if it was interrupted."""
        prompts = await asyncio.gather(*(self._next(engine, ids) for ids in self._prompts))
        first = await self._next(engine, self._context, self.session)
        if first is None or None in prompts:
            return None
        follow = first[0]
        second = await self._next(engine, [*self._context, follow], self.session)
        if second is None:
            return None
        return Answers(tuple(one[1] for one in prompts if one is not None), second[1], follow)

    async def hear_prompts(self, engine: Engine) -> tuple[float, ...]:
        """What a new engine says to the prompts. NaN where it says nothing."""
        return tuple(map(_logprob, await asyncio.gather(*(self._next(engine, ids) for ids in self._prompts))))

    async def hear_session(self, engine: Engine, follow: int) -> float:
        """What a new engine says in the session, whose KV it may have taken."""
        return _logprob(await self._next(engine, [*self._context, follow], self.session))

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
        made = await engine.generate_all(request)
        return (made.ids[0], made.logprobs[0]) if made.ids else None


def _logprob(said: tuple[int, float] | None) -> float:
    return math.nan if said is None else said[1]


def difference(ours: float, theirs: float) -> float:
    """Infinite if either is not a number."""
    apart = abs(ours - theirs)
    return math.inf if math.isnan(apart) else apart
