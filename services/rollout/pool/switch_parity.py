"""Checks, during a switch, that the new engines are the same policy as the old ones (parity.py).

    old engine ──── scores of prompts and session, between its turns ────┐
    new engines ─── scores of the prompts ───────────────────────────────┴─► compare
    new engines ─── score of the session, with the KV that arrived ────────► verify

An old engine usually answers while turns run: everything is then compared before they are interrupted. One
that has no free place answers in the stall. Every difference above the command's tolerance ends the switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from earl.errors import EngineError, EngineLost
from earl.reparallelize import SwitchCommand
from services.rollout.engines.contract.engine import Engine
from services.rollout.pool.parity import Canary, CanaryScores, ParityCheck
from services.rollout.pool.replicas import EngineReplicas
from services.rollout.pool.router import forget


class SwitchParity:
    """Compares the engines of one switch. check: what was compared so far."""

    def __init__(
        self, command: SwitchCommand, canary: Canary, old: EngineReplicas, new: EngineReplicas
    ) -> None:
        self._canary, self._old, self._new = canary, old, new
        self._scoring: asyncio.Task[CanaryScores | None] | None = None
        self._old_scores: CanaryScores | None = None
        self._new_scores: Sequence[tuple[float, ...]] = ()
        self.check = ParityCheck(
            command.logprob_tolerance,
            str(command.parallelism),
            "this parallelism is not used again in this run",
        )

    async def ask_old(self) -> None:
        """Asks an old engine for its scores, in the background: it answers between the steps of its turns.

        Whoever calls it again, because other weights came, gets the scores of those.
        """
        if self._scoring is not None:
            await self.close()
            # KV of the former weights would make the session's score.
            await self.forget(self._old)
        self._scoring = asyncio.create_task(self._score_old())

    async def score_new(self) -> None:
        """Returns with the prompts' scores of all new engines."""
        self._new_scores = await self._score_new()

    async def compare_early(self, wait_s: float) -> bool:
        """Compares the prompts' scores if the old engine answers within wait_s, and returns whether it did.

        True, too, before the first version, when there is nothing to compare. Raises ParityLost, EngineLost
        if no old engine is left.
        """
        if self._old.target.number == 0:
            return True
        assert self._scoring is not None
        await asyncio.wait([self._scoring], timeout=wait_s)
        if self._scoring.done():
            self._old_scores = self._scoring.result()
        if self._old_scores is not None:
            self._compare(self._old_scores)
        return self._old_scores is not None

    async def score_interrupted(self) -> None:
        """Gets the scores of the old engines once no turn runs there. Raises EngineError for no answer."""
        if self._scoring is not None:
            self._old_scores = await self._scoring
        self._old_scores = self._old_scores or await self._score_old()
        if self._old_scores is None and self._old.target.number:
            raise EngineError("the old engines do not answer the canary prompts", "try the switch again")

    async def compare_late(self) -> None:
        """Compares the prompts' scores after `score_interrupted`. Raises ParityLost."""
        if self._old_scores is not None:
            self._new_scores = self._new_scores or await self._score_new()
            self._compare(self._old_scores)

    async def verify_session(self) -> None:
        """Scores the canary session on every new engine, with its KV where that was taken.

        Raises ParityLost, EngineLost if a new engine is gone.
        """
        scores = self._old_scores
        if scores is None:
            return
        engines = self._live_engines()
        logprobs = await asyncio.gather(
            *(self._canary.score_session(engine, scores.follow) for engine in engines)
        )
        for engine, logprob in zip(engines, logprobs, strict=True):
            self.check.check(engine.spec.name, "the canary session", scores.session, logprob)

    async def warm_up(self, sequences: Mapping[int, int]) -> None:
        """Computes in new engines as many tokens as a decode step of their sequences does, so that the first
        step, for which turns wait, finds its kernels and memory. sequences: by the engine's number."""
        await asyncio.gather(
            *(
                self._canary.compute(replica.engine, sequences[number])
                for number, replica in enumerate(self._new.all)
                if replica.live and replica.engine is not None and sequences.get(number)
            )
        )

    async def forget(self, replicas: EngineReplicas) -> None:
        """Releases the canary session of the engines."""
        for engine in replicas.engines:
            await forget(engine, [self._canary.session])

    async def close(self) -> None:
        """Waits for no answer of an old engine any more."""
        if self._scoring is not None:
            self._scoring.cancel()
            await asyncio.gather(self._scoring, return_exceptions=True)

    async def _score_old(self) -> CanaryScores | None:
        """Canaries' log-probs of an old engine; None before the first version, or if it was interrupted.

        Raises EngineLost if no old engine is left.
        """
        if self._old.target.number == 0:
            return None
        for replica in self._old.live:
            if replica.engine is not None and replica.publication == self._old.target.number:
                try:
                    return await self._canary.score(replica.engine)
                except EngineLost:
                    continue
        raise EngineLost("no old engine is left to compare the new ones with", "try the switch again")

    async def _score_new(self) -> list[tuple[float, ...]]:
        """Log-probs of the canary prompts, by new engine; none before the first version."""
        canary, engines = self._canary, self._live_engines()
        return await asyncio.gather(*(canary.score_prompts(engine) for engine in engines))

    def _live_engines(self) -> list[Engine]:
        return [replica.engine for replica in self._new.live if replica.engine is not None]

    def _compare(self, old_scores: CanaryScores) -> None:
        for engine, logprobs in zip(self._new.engines, self._new_scores, strict=True):
            self.check.prompts(engine.spec.name, old_scores.prompts, logprobs)
