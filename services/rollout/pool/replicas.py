"""The engines of one parallelism of a pool: they are started, watched, replaced when they die, and kept at
the newest weights.

Promises: an engine that dies is started again at most `restarts` times and gets the newest weights before it
generates; when the restarts are used up, or it cannot load the weights, `failed` is called with the error. No
version is used that is loaded in part. `stop` leaves nothing running, whatever was in progress. While engines
sleep nothing is loaded, and one that dies is started again when the others are woken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from earl.errors import (
    DataPlaneError,
    DeadlineExceeded,
    EarlError,
    EngineError,
    EngineLost,
    PeerLost,
    ProcessFailed,
    RegistryUnavailable,
    VersionGone,
    WeightsIncomplete,
)
from services.rollout.engines.contract.engine import Engine, EngineSpec, EngineStats
from services.rollout.pool.engine_counters import EngineCounters

log = logging.getLogger(__name__)

# A load may fail this often in a row, RETRY_S apart. VersionGone and PeerLost do not count: a newer version,
# or a trainer that comes back, repairs them.
ATTEMPTS = 3
RETRY_S = 0.5
# Longest that an engine which ends is waited for to tell what it has counted.
LAST_STATS_S = 1.0


@dataclass(frozen=True, slots=True)
class Publication:
    """Weights as they were published. number grows with every publication; the version does not: a trainer
    that was restored from a checkpoint publishes versions that existed before."""

    number: int
    version: int
    keys: tuple[str, ...]


NOTHING = Publication(0, 0, ())


class ChangeNotifier:
    """Wakes everyone who waits for a change of the pool; each then checks the condition that it waits for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()


@dataclass(slots=True, eq=False)
class EngineReplica:
    """One engine of the pool, whichever processes it runs in now."""

    spec: EngineSpec
    engine: Engine | None = None
    # The version that is completely loaded, and its publication's number; 0: none, the engine may not
    # generate.
    version: int = 0
    publication: int = 0
    running: int = 0
    starts: int = 0
    # Beside others that work, and not yet compared with them.
    joining: bool = False
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def live(self) -> bool:
        """Returns whether the engine can generate."""
        return self.engine is not None and self.version > 0 and not self.joining


class EngineReplicas:
    """Engines of one parallelism.

    make: builds an engine of a spec. load_s: bound of loading one version into one engine. failed: called
    once with the error that ends the pool, a ProcessFailed or that of a failed start. counters: what the
    engines report once is added there. asleep: the engines begin asleep.
    """

    def __init__(
        self,
        specs: Sequence[EngineSpec],
        make: Callable[[EngineSpec], Engine],
        changes: ChangeNotifier,
        failed: Callable[[BaseException], None],
        *,
        restarts: int,
        load_s: float,
        counters: EngineCounters,
        asleep: bool = False,
    ) -> None:
        self.all = [EngineReplica(spec) for spec in specs]
        self.target = NOTHING
        self._make = make
        self._changes = changes
        self._failed = failed
        self._restarts = restarts
        self._load_s = load_s
        self._counters = counters
        self._watches: dict[EngineReplica, asyncio.Task] = {}
        self._stopping: asyncio.Task[None] | None = None
        self._version = 0
        self._awake = asyncio.Event()
        if not asleep:
            self._awake.set()

    @property
    def live(self) -> list[EngineReplica]:
        return [replica for replica in self.all if replica.live]

    @property
    def engines(self) -> list[Engine]:
        """The engines that run, whether or not they can generate."""
        return [replica.engine for replica in self.all if replica.engine is not None]

    @property
    def version(self) -> int:
        """The oldest version of the live engines; while none lives, that of before: no token is sampled
        meanwhile."""
        return self._version

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts all engines at once; if one fails, none is left. Raises what Engine.start raises."""
        self._stopping = None
        starts = [asyncio.create_task(self._start(replica)) for replica in self.all]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for task in starts:
                task.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.stop()
            raise

    def watch(self) -> None:
        """Starts replacing engines that die."""
        self._watches = {}
        for replica in self.all:
            self._begin_watch(replica)

    def _begin_watch(self, replica: EngineReplica) -> None:
        watch = asyncio.create_task(self._watch(replica))
        watch.add_done_callback(self._watched)
        self._watches[replica] = watch

    async def join(self, specs: Sequence[EngineSpec]) -> list[EngineReplica]:
        """Starts further engines beside the others; they get no turns before `admit`. If one fails, none is
        left. Raises what start raises."""
        joined = [EngineReplica(spec, joining=True) for spec in specs]
        try:
            await asyncio.gather(*(self._start(replica) for replica in joined))
        except BaseException:
            await self.leave(joined)
            raise
        self.all += joined
        return joined

    async def bring(self, joined: Sequence[EngineReplica]) -> None:
        """Brings engines that joined to the newest weights. Raises ProcessFailed."""
        await asyncio.gather(*(self._catch_up(replica) for replica in joined))

    def admit(self, joined: Sequence[EngineReplica]) -> None:
        """Lets engines that joined have turns, and replaces them when they die."""
        for replica in joined:
            replica.joining = False
            self._begin_watch(replica)
        self._refresh()

    async def leave(self, leaving: Sequence[EngineReplica]) -> None:
        """Ends some of the engines; requests in flight there fail with EngineLost."""
        self.all = [replica for replica in self.all if replica not in leaving]
        watches = [self._watches.pop(replica) for replica in leaving if replica in self._watches]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        engines = [replica.engine for replica in leaving if replica.engine is not None]
        for replica in leaving:
            replica.engine, replica.version, replica.publication = None, 0, 0
        await asyncio.gather(*map(self._end, engines))
        self._refresh()

    async def stop(self) -> None:
        """Ends all engines; requests in flight fail with EngineLost. Idempotent. If the call is cancelled the
        stop continues, and a later call waits for its end."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        watches, self._watches = list(self._watches.values()), {}
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        engines = self.engines
        for replica in self.all:
            replica.engine, replica.version, replica.publication, replica.starts = None, 0, 0, 0
        await asyncio.gather(*map(self._end, engines))

    async def recover(self) -> None:
        """Starts the engines again after `stop`, with the newest weights if those can be read. Raises what
        start raises, ProcessFailed."""
        await self.start()
        await asyncio.gather(*(self._catch_up(replica) for replica in self.all))

    async def _start(self, replica: EngineReplica) -> None:
        """Starts a replica's engine; tries ATTEMPTS times if its processes die while starting."""
        for attempt in range(1, ATTEMPTS + 1):
            engine = self._make(replica.spec)
            try:
                await engine.start()
                break
            except EngineLost as lost:
                if attempt == ATTEMPTS:
                    raise
                log.warning("engine %s died while starting, trying again: %s", replica.spec.name, lost)
        async with replica.loading:
            if replica.spec.sleeps and self._awake.is_set():
                await engine.wake()
            replica.engine, replica.version, replica.publication, replica.running = engine, 0, 0, 0
        replica.starts += 1

    def _watched(self, watch: asyncio.Task) -> None:
        if not watch.cancelled() and (error := watch.exception()) is not None:
            self._failed(error)

    async def _watch(self, replica: EngineReplica) -> None:
        while True:
            engine = replica.engine
            if engine is None:
                return
            await engine.wait_lost()
            if replica.engine is not engine:
                return  # stopped on purpose
            replica.engine, replica.version, replica.publication = None, 0, 0
            self._refresh()
            await engine.stop()  # reaps what is left of its processes
            if replica.starts > self._restarts:
                raise ProcessFailed(
                    f"engine {replica.spec.name} died {replica.starts} times",
                    "see its log on stderr; memory and rollout.max_sequences are the usual suspects",
                )
            log.warning("engine %s died; starting it again", replica.spec.name)
            await self._awake.wait()
            await self._start(replica)
            await self._catch_up(replica)

    # --- weights ------------------------------------------------------------------------------

    async def load(self, publication: Publication) -> None:
        """Loads a publication into every running engine, all at once; a dead one gets it when it is back.

        Raises VersionGone, another DataPlaneError or WeightsIncomplete.
        """
        if publication.number > self.target.number:
            self.target = publication
        results = await asyncio.gather(
            *(self._bring(replica, publication) for replica in self.all), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _bring(self, replica: EngineReplica, publication: Publication) -> None:
        async with replica.loading:
            engine = replica.engine
            if engine is None or replica.publication >= publication.number or not self._awake.is_set():
                return
            try:
                await engine.load_weights(publication.version, publication.keys, self._load_s)
            except EngineLost:
                return  # _watch notices too, and loads the newest after the restart
            except WeightsIncomplete:
                replica.version = 0  # it refuses to generate: no request is sent to it
                self._refresh()
                raise
            if replica.engine is engine:
                replica.version, replica.publication = publication.version, publication.number
                self._refresh()

    async def _catch_up(self, replica: EngineReplica) -> None:
        """Loads the newest weights into a restarted engine; `load` brings what is published meanwhile.

        Raises ProcessFailed when loading failed ATTEMPTS times.
        """
        name, target, failures = replica.spec.name, self.target, 0
        while target.number and target is self.target:
            try:
                await self._bring(replica, target)
                return  # loaded, or its engine died again, which _watch notices
            except VersionGone:
                log.info("version %d was withdrawn; engine %s waits for a newer one", target.version, name)
                return
            except (DataPlaneError, EngineError, DeadlineExceeded) as error:
                failures += not isinstance(error, (PeerLost, RegistryUnavailable))
                if failures >= ATTEMPTS and target is self.target:
                    raise ProcessFailed(
                        f"engine {name} was started again but failed {failures} times to load version "
                        f"{target.version}: {error.message}",
                        error.remedy or "see its log on stderr",
                    ) from error
                log.warning("engine %s could not load version %d: %s", name, target.version, error)
            await asyncio.sleep(RETRY_S)

    # --- sleep --------------------------------------------------------------------------------

    async def sleep(self) -> None:
        """Puts all engines to sleep, once their loads have ended. One that does not answer is ended."""
        self._awake.clear()
        await asyncio.gather(*(self._sleep(replica) for replica in self.all))

    async def _sleep(self, replica: EngineReplica) -> None:
        async with replica.loading:
            engine = replica.engine
            replica.version = replica.publication = 0
            if engine is not None:
                await _carry_out(engine, engine.sleep)
        self._changes.tell()

    async def wake(self) -> None:
        """Wakes all engines, which then load the newest publication. One that does not answer is ended."""
        self._awake.set()
        await asyncio.gather(*(self._wake(replica) for replica in self.all))

    async def _wake(self, replica: EngineReplica) -> None:
        async with replica.loading:
            engine = replica.engine
            if engine is None:
                return  # it is started by `_watch`, and woken there
            await _carry_out(engine, engine.wake)
        await self._catch_up(replica)

    def _refresh(self) -> None:
        self._version = min((replica.version for replica in self.live), default=self._version)
        self._changes.tell()

    # --- figures ------------------------------------------------------------------------------

    async def stats(self) -> list[EngineStats | None]:
        """Stats of each engine, in order; None for one that is not running or does not answer."""
        return list(await asyncio.gather(*(self._stats(replica.engine) for replica in self.all)))

    async def stats_of(self, engine: Engine) -> EngineStats:
        """Stats of one of the engines. Raises EngineLost, DeadlineExceeded."""
        number = next((number for number, each in enumerate(self.all) if each.engine is engine), 0)
        return self._counters.add(await engine.stats(), number)

    async def _stats(self, engine: Engine | None) -> EngineStats | None:
        if engine is None:
            return None
        try:
            return await self.stats_of(engine)
        except EarlError:
            return None

    async def _end(self, engine: Engine) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_STATS_S):
                    await self._stats(engine)
        finally:
            await engine.stop()


async def _carry_out(engine: Engine, call: Callable[[], Awaitable[None]]) -> None:
    """Calls an engine that must answer; its processes end if it does not, and `_watch` replaces it."""
    try:
        await call()
    except EngineLost:
        return
    except EarlError as error:
        log.warning("engine %s is ended: %s", engine.spec.name, error)
        await engine.stop()
