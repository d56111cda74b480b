"""Engines join a pool, or leave it, while the others work: devices came to rollout, or go to another stage.

    join    start ─► newest weights ─► canaries: the log-probs of an engine that works? ─► turns
    leave   those with the fewest turns get no more ─► their turns continue with the others ─► end

Promises: no turn is lost, and none of the engines that stay is interrupted; what fails while engines join is
rolled back, and none of them is left; each part ends by its deadline.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace

from earl.config.scheduler import SwitchStage
from earl.errors import DeadlineExceeded, EarlError, EngineError
from earl.reparallelize import SwitchCommand, SwitchOutcome
from earl.waiting import deadline
from services.rollout.pool.devices import PoolDevices
from services.rollout.pool.parity import Canary, ParityCheck
from services.rollout.pool.replicas import EngineReplica
from services.rollout.pool.router import RequestRouter

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PoolResize:
    """One change of a pool's number of engines. devices: of the pool afterwards. check: what was compared.

    publish_lock, reading: as in SwitchParts.
    """

    command: SwitchCommand
    router: RequestRouter
    devices: PoolDevices
    canary: Canary
    publish_lock: asyncio.Lock
    reading: Callable[[int, float], AbstractAsyncContextManager[None]]
    check: ParityCheck = field(init=False)
    # Seconds of the outcome's phases.
    _phases_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check = ParityCheck(
            self.command.logprob_tolerance, str(self.command.parallelism), "the engine does not join"
        )

    async def run(self) -> SwitchOutcome:
        """Carries it out. Raises nothing but cancellation, after which no engine that joined is left."""
        began_s, running = time.monotonic(), self.router.parallelism
        continued, reason = self.router.continued, ""
        more = self.command.parallelism.dp - running.dp
        try:
            await (self._join(more) if more > 0 else self._leave(-more))
        except EarlError as error:
            reason = str(error)
        except Exception as error:
            log.exception("a change of the pool's devices failed")
            reason = str(error)
        if not reason:
            self.router.resized(self.command.parallelism, self.devices)
        outcome = SwitchOutcome(
            epoch=self.command.epoch,
            parallelism=self.router.parallelism,
            rolled_back=bool(reason),
            message=reason,
            # The others work on.
            stall_s=0.0,
            seconds=time.monotonic() - began_s,
            sequences_continued=self.router.continued - continued,
            max_logprob_difference=self.check.largest_difference,
            logprobs_compared=self.check.compared,
        )
        return replace(outcome, **self._phases_s)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        """Notes the block's seconds as those of a phase of the outcome, also where the block fails."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self._phases_s[phase] = round(time.monotonic() - began_s, 4)

    async def _join(self, count: int) -> None:
        replicas = self.router.replicas
        specs = self.devices.specs(self.command.parallelism, self.command.epoch)[-count:]
        joined: list[EngineReplica] = []
        try:
            prepare_s = self.command.deadlines.prepare_s
            async with (
                self._within(SwitchStage.PREPARE),
                self.reading(replicas.target.version, prepare_s),
            ):
                with self._timed("start_s"):
                    joined = await replicas.join(specs)
                with self._timed("weights_s"):
                    await replicas.bring(joined)
            async with self._within(SwitchStage.VERIFY), self.publish_lock:
                await self._verify(joined)
        except BaseException:
            await replicas.leave(joined)
            raise
        replicas.admit(joined)

    async def _verify(self, joined: Sequence[EngineReplica]) -> None:
        """Compares the canaries' log-probs with those of an engine that works. Raises ParityLost."""
        replicas = self.router.replicas
        number = replicas.target.number
        alike = [replica for replica in replicas.all if replica.publication == number > 0]
        old = [replica.engine for replica in alike if replica not in joined and replica.engine is not None]
        new = [replica.engine for replica in alike if replica in joined and replica.engine is not None]
        if not old or not new:
            return  # no version can be read now: the next one is loaded before any turn
        before = await self.canary.score_prompts(old[0])
        scores = await asyncio.gather(*map(self.canary.score_prompts, new))
        for engine, after in zip(new, scores, strict=True):
            self.check.prompts(engine.spec.name, before, after)

    async def _leave(self, count: int) -> None:
        replicas = self.router.replicas
        if count >= len(replicas.all):
            raise EngineError("no engine would be left", "leave rollout one at least")
        leaving = sorted(replicas.all, key=lambda replica: replica.running)[:count]
        replicas.all = [replica for replica in replicas.all if replica not in leaving]
        try:
            async with self._within(SwitchStage.QUIESCE):
                await self.router.hand_over(leaving, self.devices)
        except EarlError as error:
            log.warning("an engine leaves in mid-turn: %s", error)
        with self._timed("end_s"):
            await replicas.leave(leaving)

    def _within(self, stage: SwitchStage) -> AbstractAsyncContextManager[None]:
        seconds = stage.deadline_s(self.command.deadlines)
        text = f"it took longer than {seconds:g} s, switch.{stage}_s"
        return deadline(seconds, DeadlineExceeded(text, "give the stage more time"))
