"""The engines that are compared, and batches of prompts that they answer in turns."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec
import xxhash

from benchmarks.children import within
from services.rollout.engines.contract.engine import EngineSpec, GenerateRequest, Generation
from services.rollout.engines.process.client import EngineProcess

# Longest that one batch may take.
BATCH_S = 900.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: prompt, references, temperature and seed of its draws."""

    ids: list[int]
    references: list[bytes]
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A batch's answers, the seconds they took, and the steps, drafted and accepted tokens of the engine."""

    answers: list[Generation]
    seconds: float
    steps: int
    drafted: int
    accepted: int

    @property
    def tokens(self) -> int:
        return sum(len(answer.ids) for answer in self.answers)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Way:
    """An engine process. Numbers its requests itself."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._numbers = itertools.count()

    @classmethod
    async def start(cls, stack: AsyncExitStack, spec: EngineSpec, **changes: object) -> Way:
        engine = EngineProcess(msgspec.structs.replace(spec, **changes))
        await engine.start()
        stack.push_async_callback(engine.stop)
        return cls(engine)

    async def answer(
        self, prompts: Sequence[Prompt], new: int, *, references: bool = True, most: int = 0
    ) -> Answered:
        """references: whether the requests bring theirs. most: requests at once, the next one when one has
        ended; 0: all."""
        free = asyncio.Semaphore(most or len(prompts))

        async def answered(request: GenerateRequest) -> Generation:
            async with free:
                return await self._engine.generate_all(request)

        requests = [
            GenerateRequest(
                request_id=str(next(self._numbers)),
                ids=prompt.ids,
                max_new_tokens=new,
                temperature=prompt.temperature,
                seed=prompt.seed,
                references=prompt.references if references else [],
            )
            for prompt in prompts
        ]
        before = await self._engine.stats()
        started = time.perf_counter()
        async with within(BATCH_S, f"a batch of {len(requests)} prompts"):
            answers = await asyncio.gather(*map(answered, requests))
        seconds = time.perf_counter() - started
        after = await self._engine.stats()
        return Answered(
            list(answers),
            seconds,
            after.steps - before.steps,
            after.drafts.drafted_tokens,
            after.drafts.accepted_tokens,
        )


def digest(answers: Sequence[Generation]) -> str:
    """xxh3 of all tokens, log-probs (bit for bit) and versions."""
    hashed = xxhash.xxh3_64()
    for answer in answers:
        hashed.update(msgspec.msgpack.encode((answer.ids, answer.logprobs, answer.versions, answer.finish)))
    return hashed.hexdigest()
