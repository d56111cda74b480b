"""The engines of one cut of a pool: they are started, watched, replaced when they die, and kept at the
newest weights.

Promises: an engine that dies is started again at most `restarts` times and gets the newest weights before
it generates; when that is used up, or it cannot load them, `failed` is told why. Nothing is half-loaded and
used. `stop` leaves nothing running, whatever was under way.
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
from services.rollout.engines.contract.engine import Engine, EngineSpec, EngineStats

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


NOTHING = Publication(0, 0, ())


class Changes:
    """Wakes all who wait for anything to change: they look again whether it was what they wait for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()


@dataclass(slots=True, eq=False)
class Member:
    """One engine's place in the pool, whichever process fills it."""

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
        """It can generate."""
        return self.engine is not None and self.version > 0


class Members:
    """make: builds an engine of a spec. load_s: bound of loading one version into one engine.

    failed: is called once with what ends the pool, a ProcessFailed or why a start failed.
    """

    def __init__(
        self,
        specs: Sequence[EngineSpec],
        make: Callable[[EngineSpec], Engine],
        changes: Changes,
        failed: Callable[[BaseException], None],
        *,
        restarts: int,
        load_s: float,
    ) -> None:
        self.all = [Member(spec) for spec in specs]
        self.target = NOTHING
        self._make = make
        self._changes = changes
        self._failed = failed
        self._restarts = restarts
        self._load_s = load_s
        self._watches: list[asyncio.Task] = []
        self._stopping: asyncio.Task[None] | None = None
        self._version = 0

    @property
    def live(self) -> list[Member]:
        return [member for member in self.all if member.live]

    @property
    def engines(self) -> list[Engine]:
        """Those that run, whether or not they can generate."""
        return [member.engine for member in self.all if member.engine is not None]

    @property
    def version(self) -> int:
        """What all live engines have at least; while none lives, what was loaded last: no token is
        sampled meanwhile."""
        return self._version

    @property
    def level(self) -> bool:
        """Every engine runs and has what was published last."""
        number = self.target.number
        return all(member.engine is not None and member.publication == number for member in self.all)

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts all engines at once; if one fails, none is left. Raises what Engine.start raises."""
        self._stopping = None
        starts = [asyncio.create_task(self._start(member)) for member in self.all]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for task in starts:
                task.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.stop()
            raise

    def watch(self) -> None:
        """From now on the dead are replaced."""
        self._watches = [asyncio.create_task(self._watch(member)) for member in self.all]
        for watch in self._watches:
            watch.add_done_callback(self._watched)

    async def stop(self) -> None:
        """Ends all engines; requests in flight fail with EngineLost. Idempotent; goes on if it is cancelled,
        and whoever calls it again waits for the end."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        engines = self.engines
        for member in self.all:
            member.engine, member.version, member.publication, member.starts = None, 0, 0, 0
        await asyncio.gather(*(engine.stop() for engine in engines))

    async def recover(self) -> None:
        """Starts them again after `stop`, with the newest weights if those can be read. Raises what start
        raises, ProcessFailed."""
        await self.start()
        await asyncio.gather(*(self._catch_up(member) for member in self.all))

    async def _start(self, member: Member) -> None:
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

    def _watched(self, watch: asyncio.Task) -> None:
        if not watch.cancelled() and (error := watch.exception()) is not None:
            self._failed(error)

    async def _watch(self, member: Member) -> None:
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
        if publication.number > self.target.number:
            self.target = publication
        results = await asyncio.gather(
            *(self._bring(member, publication) for member in self.all), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _bring(self, member: Member, publication: Publication) -> None:
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

    async def _catch_up(self, member: Member) -> None:
        """The newest weights for a restarted engine; what is published meanwhile, `load` brings.

        Raises ProcessFailed when loading failed ATTEMPTS times.
        """
        name, target, failures = member.spec.name, self.target, 0
        while target.number and target is self.target:
            try:
                await self._bring(member, target)
                return  # loaded, or its engine died again, which _watch sees next
            except VersionGone:
                log.info("version %d is gone; engine %s waits for a newer one", target.version, name)
                return
            except (DataPlaneError, EngineError, DeadlineExceeded) as error:
                failures += not isinstance(error, PeerLost)
                if failures >= ATTEMPTS and target is self.target:
                    raise ProcessFailed(
                        f"engine {name} was started again but failed {failures} times to load version "
                        f"{target.version}: {error.message}",
                        error.remedy or "see its log on stderr",
                    ) from error
                log.warning("engine %s could not load version %d: %s", name, target.version, error)
            await asyncio.sleep(RETRY_S)

    def _refresh(self) -> None:
        self._version = min((member.version for member in self.live), default=self._version)
        self._changes.tell()

    # --- figures ------------------------------------------------------------------------------

    async def stats(self) -> list[EngineStats | None]:
        """Of each engine, in order; None for one that is not running or does not answer."""
        return list(await asyncio.gather(*(_stats(member.engine) for member in self.all)))


async def _stats(engine: Engine | None) -> EngineStats | None:
    if engine is None:
        return None
    try:
        return await engine.stats()
    except EarlError:
        return None
