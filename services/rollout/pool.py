"""The pool: k engines of equal tp that look like one policy.

                     ┌─► engine 0 (processes) ──┐
    generate ────────┤   least loaded, or the   ├──► Generation
                     └─► session's last one ────┘
    load(publication) ───► every engine; `version` is what all live engines have at least

Promises: a session stays on one engine while that engine lives; an engine that dies fails its own
requests with EngineLost, is started again at most `restarts` times and gets the newest weights
before it generates; when that is used up, or it cannot load them, `run` raises ProcessFailed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from earl.errors import (
    DataPlaneError,
    DeadlineExceeded,
    EarlError,
    EngineError,
    EngineLost,
    PeerLost,
    ProcessFailed,
    VersionGone,
    WeightsIncomplete,
)
from services.rollout.engines.base import Engine, EngineSpec, EngineStats, GenerateRequest, Generation

log = logging.getLogger(__name__)

# A load may fail this often in a row, RETRY_S apart. Neither VersionGone nor PeerLost counts: a newer
# version, or a trainer that comes back, is no matter of the engine's.
ATTEMPTS = 3
RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Publication:
    """Weights as they were published. number grows with every publication; a version alone does not:
    a trainer that was restored from a checkpoint publishes versions that existed before."""

    number: int
    version: int
    keys: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Member:
    spec: EngineSpec
    engine: Engine | None = None
    # The version wholly loaded, and which publication of it; 0: none, the engine may not generate.
    version: int = 0
    publication: int = 0
    running: int = 0
    starts: int = 0
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def live(self) -> bool:
        return self.engine is not None and self.version > 0


class EnginePool:
    """make: builds an engine of a spec. load_s: bound of loading one version into one engine."""

    def __init__(
        self,
        specs: Sequence[EngineSpec],
        make: Callable[[EngineSpec], Engine],
        *,
        restarts: int,
        load_s: float,
    ) -> None:
        self._members = [_Member(spec) for spec in specs]
        self._make = make
        self._restarts = restarts
        self._load_s = load_s
        self._sessions: dict[str, _Member] = {}
        self._target = Publication(0, 0, ())
        self._changed = asyncio.Event()
        self.version = 0

    @property
    def live(self) -> int:
        """Engines that can generate."""
        return sum(member.live for member in self._members)

    @property
    def running(self) -> int:
        return sum(member.running for member in self._members)

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts all engines at once; if one fails, none is left. Raises what Engine.start raises."""
        starts = [asyncio.create_task(self._start(member)) for member in self._members]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for task in starts:
                task.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.stop()
            raise

    async def run(self) -> None:
        """Watches the engines and replaces the dead ones. Raises ProcessFailed, or why a start failed."""
        watches = [asyncio.create_task(self._watch(member)) for member in self._members]
        try:
            await asyncio.gather(*watches)
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def stop(self) -> None:
        """Ends all engines; requests in flight fail with EngineLost."""
        engines = [member.engine for member in self._members if member.engine is not None]
        for member in self._members:
            member.engine = None
        await asyncio.gather(*(engine.stop() for engine in engines))

    async def _start(self, member: _Member) -> None:
        """Starts its engine; one whose processes die while starting is tried ATTEMPTS times."""
        for attempt in range(1, ATTEMPTS + 1):
            engine = self._make(member.spec)
            try:
                await engine.start()
                break
            except EngineLost as lost:
                if attempt == ATTEMPTS:
                    raise
                log.warning("engine %s died while starting, trying again: %s", member.spec.name, lost)
        member.engine, member.version, member.publication, member.running = engine, 0, 0, 0
        member.starts += 1

    async def _watch(self, member: _Member) -> None:
        while True:
            engine = member.engine
            if engine is None:
                return
            await engine.wait_lost()
            if member.engine is not engine:
                return  # stopped by us
            member.engine, member.version, member.publication = None, 0, 0
            self._refresh()
            await engine.stop()  # reaps what is left of its processes
            if member.starts > self._restarts:
                raise ProcessFailed(
                    f"engine {member.spec.name} died {member.starts} times",
                    "see its log on stderr; memory and rollout.max_sequences are the usual suspects",
                )
            log.warning("engine %s died; starting it again", member.spec.name)
            await self._start(member)
            await self._catch_up(member)

    # --- weights ------------------------------------------------------------------------------

    async def load(self, publication: Publication) -> None:
        """Brings every engine that runs to it, all at once; a dead one gets it when it is back.

        Raises VersionGone, another DataPlaneError or WeightsIncomplete; nothing is half-loaded and used.
        """
        if publication.number > self._target.number:
            self._target = publication
        results = await asyncio.gather(
            *(self._bring(member, publication) for member in self._members), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def wait_version(self, version: int) -> None:
        """Returns when all live engines have `version` or a newer one."""
        while self.version < version:
            await self._changed.wait()

    async def wait_other(self, version: int, timeout_s: float) -> None:
        """Returns when `version` is no longer the one in use, or after timeout_s."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.version == version:
                    await self._changed.wait()
        except TimeoutError:
            return

    async def _bring(self, member: _Member, publication: Publication) -> None:
        async with member.loading:
            engine = member.engine
            if engine is None or member.publication >= publication.number:
                return
            try:
                await engine.load_weights(publication.version, publication.keys, self._load_s)
            except EngineLost:
                return  # _watch sees it too, and loads the newest after the restart
            except WeightsIncomplete:
                member.version = 0  # it refuses to generate: nobody is sent there
                self._refresh()
                raise
            if member.engine is engine:
                member.version, member.publication = publication.version, publication.number
                self._refresh()

    async def _catch_up(self, member: _Member) -> None:
        """The newest weights for a restarted engine; what is published meanwhile, `load` brings.

        Raises ProcessFailed when loading failed ATTEMPTS times.
        """
        name, target, failures = member.spec.name, self._target, 0
        while target.number and target is self._target:
            try:
                await self._bring(member, target)
                return  # loaded, or its engine died again, which _watch sees next
            except VersionGone:
                log.info("version %d is gone; engine %s waits for a newer one", target.version, name)
                return
            except (DataPlaneError, EngineError, DeadlineExceeded) as error:
                failures += not isinstance(error, PeerLost)
                if failures >= ATTEMPTS and target is self._target:
                    raise ProcessFailed(
                        f"engine {name} was started again but failed {failures} times to load version "
                        f"{target.version}: {error.message}",
                        error.remedy or "see its log on stderr",
                    ) from error
                log.warning("engine %s could not load version %d: %s", name, target.version, error)
            await asyncio.sleep(RETRY_S)

    def _refresh(self) -> None:
        versions = [member.version for member in self._members if member.live]
        # While no engine lives, what was loaded last stays the answer: no token is sampled meanwhile.
        self.version = min(versions, default=self.version)
        self._changed.set()
        self._changed = asyncio.Event()

    # --- generation ---------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> Generation:
        """One turn, on the session's engine or on the least loaded one; waits while none is alive.

        Raises what Engine.generate_all raises. Cancelling aborts the request in the engine.
        """
        member = self._sessions.get(request.session)
        if member is None or not member.live:
            member = await self._pick()
            self._sessions[request.session] = member
        engine = member.engine
        if engine is None:
            raise EngineError(f"engine {member.spec.name} is gone", "the episode is tried again")
        member.running += 1
        try:
            return await engine.generate_all(request)
        finally:
            if member.engine is engine:
                member.running -= 1

    async def _pick(self) -> _Member:
        while True:
            live = [member for member in self._members if member.live]
            if live:
                return min(live, key=lambda member: member.running)
            await self._changed.wait()

    async def release(self, session: str) -> None:
        """The episode is over: its KV may go."""
        member = self._sessions.pop(session, None)
        if member is not None and member.engine is not None:
            await member.engine.release(session)

    async def stats(self) -> list[EngineStats | None]:
        """Of each engine, in order; None for one that is not running or does not answer."""
        return list(await asyncio.gather(*(self._stats(member.engine) for member in self._members)))

    @staticmethod
    async def _stats(engine: Engine | None) -> EngineStats | None:
        if engine is None:
            return None
        try:
            return await engine.stats()
        except EarlError:
            return None
