"""One switch of a pool to another tensor parallelism: new engines replace the old ones.

    warm   prepare: start new · weights · canaries · KV ─► quiesce: interrupt ─► switch: last KV ─► alive? ─┐
    cold   quiesce: interrupt, old end ─► prepare: start new · weights ─► verify ───────────────────────────┤
                                                                                                            ▼
        turns continue with the new engines, the old end   ◄── yes ── the same log-probs? ── no ─► roll back

Promises: no turn is lost; each stage ends by its deadline; whatever fails before the end, also the death of
a new engine, is rolled back: turns continue with the old engines (after a cold switch, with others like
them), and the outcome gives the reason; if those do not come by their deadline either, the pool ends. The
death of an old engine costs its own turns, as at any other time, and nothing more. While engines are
compared, no weights reach the pool.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from earl.config.scheduler import SwitchStage
from earl.errors import (
    DeadlineExceeded,
    EarlError,
    EngineLost,
    PeerLost,
    RegistryUnavailable,
    VersionGone,
)
from earl.reparallelize import SwitchCommand, SwitchOutcome
from earl.waiting import deadline
from services.rollout.engines.contract.engine import EngineStats
from services.rollout.pool.kv_handover import KvHandover
from services.rollout.pool.kv_placement import Rates
from services.rollout.pool.parity import Canary, ParityLost
from services.rollout.pool.replicas import RETRY_S, EngineReplica, EngineReplicas, Publication
from services.rollout.pool.router import RequestRouter, forget
from services.rollout.pool.switch_parity import SwitchParity

log = logging.getLogger(__name__)

# Seconds that turns run on while an old engine, busy with them, answers the canary prompts.
EARLY_S = 5.0
# Seconds that the old engines' end waits for the new ones' first step, and between two questions for it.
FIRST_S, POLL_S = 10.0, 0.005


@dataclass(frozen=True, slots=True)
class SwitchParts:
    """The parts that a switch works on.

    new: engines of the parallelism that was asked for, not started. publish_lock: while it is held no weights
    reach the pool, so that both sides have one version. reading: keeps a version readable for so many
    seconds. warm: whether the new engines fit next to the old ones, whose stats it gets. awaited: whether the
    weights in use, while they cannot be read, or newer ones in their place are still to be waited for. lost:
    called with the error that ends the pool.
    """

    router: RequestRouter
    new: EngineReplicas
    canary: Canary
    publish_lock: asyncio.Lock
    reading: Callable[[int, float], AbstractAsyncContextManager[None]]
    warm: Callable[[Sequence[EngineStats]], bool]
    awaited: Callable[[], bool]
    lost: Callable[[BaseException], None]


class PoolSwitch:
    """Carries one command out, once. rates: as measured so far; after `run` also in this switch."""

    def __init__(self, command: SwitchCommand, parts: SwitchParts, rates: Rates) -> None:
        self._command = command
        self._deadlines = command.deadlines
        self._parts = parts
        self._router = parts.router
        self._old, self._new = parts.router.replicas, parts.new
        self._stage = SwitchStage.PREPARE
        self._publications = AsyncExitStack()
        # While this is open both sets of engines have processes.
        self._competing = ExitStack()
        self._parity = SwitchParity(command, parts.canary, self._old, self._new)
        self._handover: KvHandover | None = None
        self._interrupted_s: float | None = None
        self._old_ended = False
        self._outcome = SwitchOutcome(epoch=command.epoch, parallelism=parts.router.parallelism)
        self.rates = rates

    async def run(self) -> SwitchOutcome:
        """Carries out the switch. Raises nothing but cancellation, after which all engines are gone."""
        began, continued = time.monotonic(), self._router.continued
        try:
            try:
                released = await self._replace()
            except EarlError as error:
                await self._roll_back(error)
            except Exception as error:
                log.exception("a switch failed")
                await self._roll_back(error)
            else:
                await self._clean_up(released)
        except BaseException:
            # The pool stops: it ends the engines in use, here both sides are ended.
            await asyncio.gather(self._new.stop(), self._old.stop())
            raise
        finally:
            self._competing.close()
            await self._parity.close()
            await self._release_publications()
        self._note(
            sequences_continued=self._router.continued - continued,
            seconds=time.monotonic() - began,
            max_logprob_difference=self._parity.check.largest_difference,
            logprobs_compared=self._parity.check.compared,
        )
        return self._outcome

    def _note(self, **fields) -> None:
        self._outcome = replace(self._outcome, **fields)

    @contextmanager
    def _timed(self, *phases: str) -> Iterator[None]:
        """Adds the block's seconds to figures of the outcome, also where the block fails."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - began_s
            self._note(**{phase: round(getattr(self._outcome, phase) + seconds, 4) for phase in phases})

    async def _replace(self) -> list[tuple[EngineReplica, str]]:
        """Puts the new engines into use; returns as `_resume`."""
        stats = [engine for engine in await self._old.stats() if engine is not None]
        if self._parts.warm(stats):
            await self._warm(stats)
        else:
            self._note(cold=True)
            await self._cold()
        return self._resume()

    async def _clean_up(self, released: Sequence[tuple[EngineReplica, str]]) -> None:
        """Ends what the switch leaves behind. Turns run on the new engines by now: whatever fails here is
        logged, and rolls nothing back."""
        for clean in (
            self._sample_first,
            self._release_publications,
            lambda: self._forget_released(released),
            lambda: self._parity.forget(self._new),
            lambda: self._end(self._old),
        ):
            try:
                await clean()
            except Exception:
                log.exception("the switch is done, but something of it is left behind")

    async def _end(self, engines: EngineReplicas) -> None:
        with self._timed("end_s"):
            await engines.stop()

    async def _sample_first(self) -> None:
        """Returns once each new engine has sampled for the turns that it got, after FIRST_S at most.

        The end of the old engines takes cores, and turns wait for their next token.
        """
        with self._timed("resume_s"), suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                await asyncio.gather(*(self._sampled(replica) for replica in self._new.all))

    async def _sampled(self, replica: EngineReplica) -> None:
        generated = None
        while (engine := replica.engine) is not None:
            try:
                stats = await self._new.stats_of(engine)
            except EngineLost:
                return
            # The first answer may be older than the turns: it tells what the canaries made.
            generated = stats.generated_tokens if generated is None else generated
            if stats.generated_tokens > generated or not replica.running:
                return
            await asyncio.sleep(POLL_S)

    async def _forget_released(self, released: Sequence[tuple[EngineReplica, str]]) -> None:
        for replica, session in released:
            if replica.engine is not None:
                await forget(replica.engine, [session])

    # --- stages -------------------------------------------------------------------------------

    async def _warm(self, stats: Sequence[EngineStats]) -> None:
        self._competing.enter_context(self._timed("competing_s"))
        async with self._within(SwitchStage.PREPARE):
            await self._start()
            with self._timed("weights_s"):
                await self._load_same_weights()
            with self._timed("kv_ahead_s"):
                early, handover = await self._work_ahead(stats)
        async with self._within(SwitchStage.QUIESCE):
            await self._interrupt()
        async with self._within(SwitchStage.SWITCH):
            with self._timed("kv_rest_s"):
                if not early:
                    await self._parity.score_interrupted()
                if handover is not None:
                    await handover.round(self._tokens(), self._deadlines.switch_s, ahead=False)
        async with self._within(SwitchStage.VERIFY):
            with self._timed("kv_rest_s"):
                if not early:
                    await self._parity.compare_late()
                    await self._parity.verify_session()
                # Whichever has died until now is rolled back.
                await asyncio.gather(*map(self._new.stats_of, self._new.engines))

    async def _work_ahead(self, stats: Sequence[EngineStats]) -> tuple[bool, KvHandover | None]:
        """Does, while turns run, what they would otherwise wait for: canaries and rounds of KV.

        Returns whether the canaries' scores were compared, and the hand-over if there is one.
        """
        await self._parity.score_new()
        handover = await self._begin_handover(stats)
        if handover is not None:
            handover.place(self._tokens())
            # Before KV arrives: a prompt could take its place.
            await self._parity.warm_up(Counter(handover.placed.values()))
            await handover.round(self._tokens(), self._deadlines.prepare_s, ahead=True)
        early = await self._parity.compare_early(EARLY_S)
        if handover is not None:
            # The canary session is part of this one at the latest.
            await handover.round(self._tokens(), self._deadlines.prepare_s, ahead=True)
        if early:
            await self._parity.verify_session()
            await self._parity.forget(self._new)
        if handover is not None:
            await handover.catch_up(self._tokens, self._deadlines.prepare_s)
            self._note(kv_rounds=handover.rounds)
        return early, handover

    async def _cold(self) -> None:
        deadlines = self._deadlines
        async with self._within(SwitchStage.QUIESCE):
            await self._hold_publications(self._old.target, deadlines.quiesce_s + deadlines.prepare_s)
            await self._interrupt()
            await self._parity.score_interrupted()
            self._old_ended = True
            with self._timed("end_s"):
                await self._old.stop()
        async with self._within(SwitchStage.PREPARE):
            await self._start()
            with self._timed("weights_s"):
                async with self._bounded(SwitchStage.LOAD):
                    await self._load()
        async with self._within(SwitchStage.VERIFY):
            await self._parity.compare_late()

    async def _start(self) -> None:
        with self._timed("start_s"):
            await self._new.start()

    def _within(self, stage: SwitchStage) -> AbstractAsyncContextManager[None]:
        """Begins a stage, and ends it by its deadline in the command. Raises DeadlineExceeded."""
        self._stage = stage
        return self._bounded(stage)

    def _bounded(self, stage: SwitchStage) -> AbstractAsyncContextManager[None]:
        """Ends a stage, or a part of the one in progress, by its deadline. Raises DeadlineExceeded."""
        seconds = stage.deadline_s(self._deadlines)
        text = f"it took longer than {seconds:g} s, switch.{stage}_s"
        late = DeadlineExceeded(text, "give the stage more time, or switch when less runs")
        return deadline(seconds, late)

    async def _interrupt(self) -> None:
        self._interrupted_s = time.monotonic()
        with self._timed("interrupt_s"):
            self._interrupted_s = await self._router.interrupt()

    def _resume(self) -> list[tuple[EngineReplica, str]]:
        """Turns continue with the new engines.

        Returns (new engine, session) for each session that ended while its KV was handed over.
        """
        tokens, handover = self._tokens(), self._handover
        moved = handover.moved if handover is not None else {}
        placed = handover.placed if handover is not None else {}
        placement = {session: self._new.all[number] for session, number in placed.items()}
        released = self._router.use(self._new, self._command.parallelism, placement)
        self._new.watch()
        self._note(
            parallelism=self._command.parallelism,
            stall_s=self._stall_s(),
            # The last token of a context has no KV yet, on whichever engine.
            kv_recomputed_tokens=sum(
                max(0, count - 1 - moved.get(session, 0)) for session, count in tokens.items()
            ),
            moved_bytes=handover.size_bytes if handover is not None else 0,
        )
        if handover is not None:
            self.rates = handover.rates
        return released

    def _stall_s(self) -> float:
        return 0.0 if self._interrupted_s is None else time.monotonic() - self._interrupted_s

    async def _roll_back(self, error: Exception) -> None:
        message = f"{self._command.parallelism} was not reached, {self._stage} failed: {error}"
        log.warning("%s; continuing with %s", message, self._router.parallelism)
        if isinstance(error, ParityLost):
            self._router.exclude(self._command.parallelism.tp)
        if self._old_ended:
            try:
                async with self._within(SwitchStage.RECOVER):
                    await self._old.recover()
                self._old.watch()
            except EarlError as failure:
                self._parts.lost(failure)
        self._router.resume()
        self._note(rolled_back=True, message=message, stall_s=self._stall_s())
        await self._end(self._new)
        if self._handover is not None:
            await self._handover.close()
        await self._parity.forget(self._old)

    # --- weights ------------------------------------------------------------------------------

    async def _hold_publications(self, publication: Publication, seconds: float) -> None:
        """From here on no weights reach either side, and `publication` stays readable for so many seconds."""
        await self._publications.enter_async_context(self._parts.publish_lock)
        if publication.number:
            await self._publications.enter_async_context(self._parts.reading(publication.version, seconds))

    async def _release_publications(self) -> None:
        try:
            await self._publications.aclose()
        except EarlError as error:
            log.warning("a reader's lease was not given back and ends by itself: %s", error)

    async def _load_same_weights(self) -> None:
        """Brings the new engines to the weights of the old ones; publications are held from here on.

        LOAD's deadline bounds each attempt to load, not the waits for a publication that is loaded meanwhile.
        """
        while True:
            await self._hold_publications(self._old.target, self._deadlines.prepare_s)
            number = self._old.target.number
            if number == 0 or any(replica.publication == number for replica in self._old.live):
                await self._parity.ask_old()
                try:
                    async with self._bounded(SwitchStage.LOAD):
                        return await self._load()
                except (VersionGone, PeerLost, RegistryUnavailable) as error:
                    if not self._parts.awaited():
                        raise
                    log.info("version %d cannot be read: %s", self._old.target.version, error)
            # The old engines are about to get newer weights.
            await self._release_publications()
            await asyncio.sleep(RETRY_S)

    async def _load(self) -> None:
        target = self._old.target
        if target.number == 0:
            return
        await self._new.load(target)
        for replica in self._new.all:
            if not replica.live:
                raise EngineLost(
                    f"engine {replica.spec.name} died while it loaded version {target.version}",
                    "see the worker's log",
                )

    # --- KV -----------------------------------------------------------------------------------

    def _tokens(self) -> dict[str, int]:
        return self._router.sessions

    async def _begin_handover(self, stats: Sequence[EngineStats]) -> KvHandover | None:
        """The hand-over of KV from the old engines to the new ones; None if one of the sides cannot."""
        old, new = self._old.engines, self._new.engines
        if not all(engine.caps.live_reshape for engine in [*old, *new]) or not old:
            return None
        fresh = [engine for engine in await self._new.stats() if engine is not None]
        self._handover = KvHandover(
            name=f"kv/{self._command.epoch}",
            old=old,
            new=new,
            places=new[0].spec.max_sequences - 1,
            engine_tokens=max((engine.kv_tokens for engine in fresh), default=0),
            token_bytes=max((engine.kv_token_bytes * engine.tp for engine in stats), default=0),
            rates=self.rates.prefilled(
                (engine.prefilled_tokens, engine.step_s) for engine in [*stats, *fresh]
            ),
            canary=self._parts.canary.session,
        )
        return self._handover
