"""One switch of a pool to another cut of its devices: the new engines replace the old ones.

    warm   prepare: start new · weights · canaries · KV ─► quiesce: interrupt ─► switch: last KV ─► verify ─┐
    cold   quiesce: interrupt, old end ─► prepare: start new · weights ─► verify ───────────────────────────┤
                                                                                                            ▼
           every turn goes on with the new engines, the old end   ◄── yes ── the same log-probs? ── no ─► back

Promises: no turn is lost; each stage ends by its deadline; whatever fails before the end, also the death of
a new engine, is rolled back: the old engines go on (after a cold switch, others of the old cut), and the
report says why. An old engine's death costs its own turns, as ever, and nothing more. While engines are
compared, no weights reach the pool.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from earl.errors import DeadlineExceeded, EarlError, EngineError, EngineLost, PeerLost, VersionGone
from earl.parallelism import Parallelism
from services.rollout.engines.contract.engine import EngineStats
from services.rollout.pool.kv_handover import Handover
from services.rollout.pool.kv_placement import Rates
from services.rollout.pool.parity import Answers, Canary, difference
from services.rollout.pool.replicas import RETRY_S, Members, Publication
from services.rollout.pool.router import Traffic, forget

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Command:
    """epoch: of the switch. Seconds are deadlines of the stages. logprob_tolerance: between canaries."""

    epoch: int
    parallelism: Parallelism
    prepare_s: float = 120.0
    quiesce_s: float = 10.0
    switch_s: float = 30.0
    verify_s: float = 30.0
    logprob_tolerance: float = 0.05
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SwitchReport:
    """How a switch ended. parallelism: the cut in use now. stall_s: no turn went on for so long."""

    epoch: int
    parallelism: Parallelism
    rolled_back: bool = False
    message: str = ""
    stall_s: float = 0.0
    sequences_continued: int = 0
    kv_moved_bytes: int = 0
    kv_recomputed_tokens: int = 0
    max_logprob_difference: float = 0.0
    cold: bool = False
    seconds: float = 0.0


class ParityLost(EngineError):
    """New engines do not say what the old ones say with the same weights."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a switch works on. new: engines of the cut, not started.

    still: holds back publications, so that both sides have one version; `reading` keeps what was published
    until it was read, for so many seconds. warm: whether the new engines fit beside the old ones, whose stats
    it gets. lost: is told what ends the pool.
    """

    traffic: Traffic
    new: Members
    canary: Canary
    still: asyncio.Lock
    reading: Callable[[Publication, float], AbstractAsyncContextManager[None]]
    warm: Callable[[Sequence[EngineStats]], bool]
    lost: Callable[[BaseException], None]


class Switch:
    """Runs once. rates: measured before, and again when it is over."""

    def __init__(self, command: Command, parts: Parts, rates: Rates) -> None:
        self._command = command
        self._parts = parts
        self._traffic, self._canary = parts.traffic, parts.canary
        self._old, self._new = parts.traffic.members, parts.new
        self._stage = "prepare"
        self._held = AsyncExitStack()
        self._hearing: asyncio.Task[Answers | None] | None = None
        self._handover: Handover | None = None
        self._interrupted_s: float | None = None
        self._ended = False  # the old engines
        self._report = SwitchReport(command.epoch, parts.traffic.cut)
        self.rates = rates

    async def run(self) -> SwitchReport:
        """Raises nothing but cancellation, after which all engines are gone."""
        began, continued = time.monotonic(), self._traffic.continued
        try:
            try:
                await self._replace()
            except EarlError as error:
                await self._roll_back(error)
            except Exception as error:
                log.exception("a switch broke")
                await self._roll_back(error)
        except BaseException:
            # The pool stops: whichever engines it has by now, the others are to go too.
            await asyncio.gather(self._new.stop(), self._old.stop())
            raise
        finally:
            if self._hearing is not None:
                self._hearing.cancel()
                await asyncio.gather(self._hearing, return_exceptions=True)
            await self._let_publish()
        self._note(sequences_continued=self._traffic.continued - continued, seconds=time.monotonic() - began)
        return self._report

    def _note(self, **figures) -> None:
        self._report = replace(self._report, **figures)

    async def _replace(self) -> None:
        stats = [one for one in await self._old.stats() if one is not None]
        if self._parts.warm(stats):
            await self._warm(stats)
        else:
            self._note(cold=True)
            await self._cold()
        seats = self._resume()
        await self._let_publish()
        for member, session in seats:
            if member.engine is not None:
                await forget(member.engine, [session])
        await self._forget_canary(self._new)
        await self._old.stop()

    # --- stages -------------------------------------------------------------------------------

    async def _warm(self, stats: Sequence[EngineStats]) -> None:
        command = self._command
        async with self._within("prepare", command.prepare_s):
            await self._new.start()
            await self._level()
            self._hearing = asyncio.create_task(self._hear_old())
            said = await self._hear_new()
            handover = await self._begin_handover(stats)
            if handover is not None:
                await handover.round(self._tokens(), command.prepare_s)
            # Where an old engine has no free place it says nothing yet; nobody waits for that.
            answers = self._hearing.result() if self._hearing.done() else None
            if answers is not None:
                self._compare(answers, said)
        async with self._within("quiesce", command.quiesce_s):
            await self._interrupt()
        async with self._within("switch", command.switch_s):
            if answers is None:
                answers = await self._hearing or await self._hear_quiet()
            if handover is not None:
                await handover.round(self._tokens(), command.switch_s)
        async with self._within("verify", command.verify_s):
            if answers is not None:
                self._compare(answers, said)
            await self._verify_session(answers)

    async def _cold(self) -> None:
        command = self._command
        async with self._within("quiesce", command.quiesce_s):
            await self._hold(self._old.target, command.quiesce_s + command.prepare_s)
            await self._interrupt()
            answers = await self._hear_quiet()
            self._ended = True
            await self._old.stop()
        async with self._within("prepare", command.prepare_s):
            await self._new.start()
            await self._load()
        async with self._within("verify", command.verify_s):
            if answers is not None:
                self._compare(answers, await self._hear_new())

    @asynccontextmanager
    async def _within(self, stage: str, seconds: float) -> AsyncIterator[None]:
        self._stage = stage
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise DeadlineExceeded(
                f"it took longer than {seconds:g} s", "give the stage more time, or switch when less runs"
            ) from None

    async def _interrupt(self) -> None:
        self._interrupted_s = time.monotonic()
        self._interrupted_s = await self._traffic.interrupt()

    def _resume(self):
        """Turns go on with the new engines; returns what `Traffic.use` does."""
        tokens, handover = self._tokens(), self._handover
        moved = handover.moved if handover is not None else {}
        placed = handover.placed if handover is not None else {}
        seats = {session: self._new.all[number] for session, number in placed.items()}
        left = self._traffic.use(self._new, self._command.parallelism, seats)
        self._new.watch()
        self._note(
            parallelism=self._command.parallelism,
            stall_s=self._stall_s(),
            # The last token of a context has no KV yet, on whichever engine.
            kv_recomputed_tokens=sum(
                max(0, count - 1 - moved.get(session, 0)) for session, count in tokens.items()
            ),
            kv_moved_bytes=handover.size_bytes if handover is not None else 0,
        )
        if handover is not None:
            self.rates = handover.rates
        return left

    def _stall_s(self) -> float:
        return 0.0 if self._interrupted_s is None else time.monotonic() - self._interrupted_s

    async def _roll_back(self, error: Exception) -> None:
        message = f"{self._command.parallelism} was not reached, {self._stage} failed: {error}"
        log.warning("%s; going on with %s", message, self._traffic.cut)
        if isinstance(error, ParityLost):
            self._traffic.spoil(self._command.parallelism.tp)
        if self._ended:
            try:
                await self._old.recover()
                self._old.watch()
            except EarlError as failure:
                self._parts.lost(failure)
        self._traffic.go_on()
        self._note(rolled_back=True, message=message, stall_s=self._stall_s())
        await self._new.stop()
        if self._handover is not None:
            await self._handover.close()
        await self._forget_canary(self._old)

    # --- weights ------------------------------------------------------------------------------

    async def _hold(self, publication: Publication, seconds: float) -> None:
        """From here on nothing is published to either side, and what was is there to be read."""
        await self._held.enter_async_context(self._parts.still)
        if publication.number:
            await self._held.enter_async_context(self._parts.reading(publication, seconds))

    async def _let_publish(self) -> None:
        try:
            await self._held.aclose()
        except EarlError as error:
            log.warning("a reader's lease was not given back and ends by itself: %s", error)

    async def _level(self) -> None:
        """The new engines have what the old ones have, and nothing is published from here on."""
        while True:
            await self._hold(self._old.target, self._command.prepare_s)
            number = self._old.target.number
            if number == 0 or any(member.publication == number for member in self._old.live):
                try:
                    return await self._load()
                except (VersionGone, PeerLost) as error:
                    log.info("version %d cannot be read: %s", self._old.target.version, error)
            # The old ones are about to get something newer.
            await self._let_publish()
            await asyncio.sleep(RETRY_S)

    async def _load(self) -> None:
        target = self._old.target
        if target.number == 0:
            return
        await self._new.load(target)
        for member in self._new.all:
            if not member.live:
                raise EngineLost(
                    f"engine {member.spec.name} died while it loaded version {target.version}",
                    "see the worker's log",
                )

    # --- parity -------------------------------------------------------------------------------

    async def _hear_old(self) -> Answers | None:
        """None before the first version, or if the engine was interrupted. Raises EngineLost if none is
        left."""
        if self._old.target.number == 0:
            return None
        for member in self._old.live:
            if member.engine is not None and member.publication == self._old.target.number:
                try:
                    return await self._canary.hear(member.engine)
                except EngineLost:
                    continue
        raise EngineLost("no old engine is left to compare the new ones with", "try the switch again")

    async def _hear_quiet(self) -> Answers | None:
        """`_hear_old` where nothing interrupts any more."""
        answers = await self._hear_old()
        if answers is None and self._old.target.number:
            raise EngineError("the old engines do not answer the canary prompts", "try the switch again")
        return answers

    async def _hear_new(self) -> list[tuple[float, ...]]:
        """What each new engine says; nothing before the first version."""
        return list(
            await asyncio.gather(*(self._canary.hear_prompts(engine) for engine in self._live_engines()))
        )

    def _live_engines(self):
        return [member.engine for member in self._new.live if member.engine is not None]

    def _compare(self, answers: Answers, said: Sequence[tuple[float, ...]]) -> None:
        """Raises ParityLost."""
        for engine, logprobs in zip(self._new.engines, said, strict=True):
            for wanted, logprob in zip(answers.prompts, logprobs, strict=True):
                self._judge(engine.spec.name, "a canary prompt", difference(wanted, logprob))

    async def _verify_session(self, answers: Answers | None) -> None:
        """The new engines go on where the old one was, with its KV if they took it. Raises ParityLost,
        EngineLost if one of them is gone."""
        engines = self._live_engines()
        if answers is None:
            await asyncio.gather(*(engine.stats() for engine in engines))
            return
        said = await asyncio.gather(
            *(self._canary.hear_session(engine, answers.follow) for engine in engines)
        )
        for engine, logprob in zip(engines, said, strict=True):
            self._judge(engine.spec.name, "the canary session", difference(answers.session, logprob))

    def _judge(self, engine: str, what: str, apart: float) -> None:
        self._note(max_logprob_difference=max(apart, self._report.max_logprob_difference))
        if apart > self._command.logprob_tolerance:
            raise ParityLost(
                f"{self._command.parallelism}: engine {engine} differs by {apart:.3g} in the log-prob of "
                f"{what}, more than {self._command.logprob_tolerance:g}",
                "this cut is not used again in this run; its kernels or its weights are wrong",
            )

    async def _forget_canary(self, members: Members) -> None:
        for engine in members.engines:
            await forget(engine, [self._canary.session])

    # --- KV -----------------------------------------------------------------------------------

    def _tokens(self) -> dict[str, int]:
        return self._traffic.sessions

    async def _begin_handover(self, stats: Sequence[EngineStats]) -> Handover | None:
        """None if one of the sides cannot."""
        old, new = self._old.engines, self._new.engines
        if not all(engine.caps.live_reshape for engine in [*old, *new]) or not old:
            return None
        fresh = [one for one in await self._new.stats() if one is not None]
        self._handover = Handover(
            name=f"kv/{self._command.epoch}",
            old=old,
            new=new,
            places=new[0].spec.max_sequences - 1,
            room_tokens=max((one.kv_tokens for one in fresh), default=0),
            token_bytes=max((one.kv_token_bytes * one.tp for one in stats), default=0),
            rates=self.rates.prefilled((one.prefilled_tokens, one.step_s) for one in [*stats, *fresh]),
            canary=self._canary.session,
        )
        return self._handover
