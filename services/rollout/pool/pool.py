"""The pool: engines of equal tp over a worker's devices, used as one policy whatever their parallelism.

    generate ─► router ─► replicas (dp engines)        load(publication) ─► every engine
                  ▲            ▲
                  └─ switch ───┘  reparallelize: other engines take over while turns run
    set_asleep: turns are interrupted and wait, engines return their memory; woken, they load the newest
    version, and turns continue from their token ids

Promises: those of router.py, replicas.py and switch.py. One switch runs at a time; a command that was given
before gets the same outcome, while it runs or after; one of an older epoch is refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress

from earl.errors import EarlError, ReshapeRefused, StaleEpoch
from earl.obs.memory import available_bytes
from earl.parallelism import Parallelism
from earl.reparallelize import CommandSlot, SwitchCommand, SwitchOutcome
from earl.worker_report import TransferTotals
from services.rollout.engines.contract.engine import (
    Engine,
    EngineSpec,
    EngineStats,
    GenerateRequest,
    Generation,
)
from services.rollout.pool.awake_time import AwakeTime
from services.rollout.pool.devices import PoolDevices
from services.rollout.pool.engine_counters import EngineCounters
from services.rollout.pool.host_copy import CopyReads, HostCopy
from services.rollout.pool.kv_placement import Rates
from services.rollout.pool.memory_fit import fits_with_old
from services.rollout.pool.parity import Canary
from services.rollout.pool.replicas import ChangeNotifier, EngineReplicas, Publication
from services.rollout.pool.resize import PoolResize
from services.rollout.pool.router import RequestRouter
from services.rollout.pool.standby import StandbyProcesses
from services.rollout.pool.switch import PoolSwitch, SwitchParts

log = logging.getLogger(__name__)

Reading = Callable[[int, float], AbstractAsyncContextManager[None]]


def always_readable(version: int, lease_s: float) -> AbstractAsyncContextManager[None]:
    """The Reading of publications that nobody withdraws."""
    return nullcontext()


class EnginePool:
    """The engines of one worker.

    devices: what engines are on. make: builds an engine of a spec. load_s: bound of
    loading one version into one engine.

    waits: turns that the engines in use cannot hold wait for engines that can, because switches are ordered
    in this run. free_bytes: what processes of the host may still take; new engines start next to the old ones
    where that is enough. reading: keeps a version readable for so many seconds at most. copy: of what the
    engines cannot apply from where it was published; None if they always can. standby: processes that `make`
    takes for engines, kept ready while no switch runs. asleep: the engines sleep until `set_asleep` wakes
    them.
    """

    def __init__(
        self,
        devices: PoolDevices,
        make: Callable[[EngineSpec], Engine],
        *,
        restarts: int,
        load_s: float,
        waits: bool = False,
        free_bytes: Callable[[], int] = available_bytes,
        reading: Reading = always_readable,
        copy: HostCopy | None = None,
        standby: StandbyProcesses | None = None,
        asleep: bool = False,
    ) -> None:
        self._copy = copy
        self._standby = standby
        self._devices = devices
        self._free_bytes = free_bytes
        self._make = make
        self._restarts = restarts
        self._load_s = load_s
        self._changes = ChangeNotifier()
        # Also those of engines that have been replaced.
        self.counters = EngineCounters()
        self.asleep = asleep
        # Time that stands still while the engines sleep.
        self.time = AwakeTime()
        # Seconds asleep since the start, until the last waking, and seconds that wakings took.
        self.asleep_s = self.waking_s = 0.0
        self._slept_s = time.monotonic()
        # The number of the last command to sleep or wake.
        self._turn = 0
        self._sleep_lock = asyncio.Lock()
        self._sleeping: asyncio.Task[float] | None = None
        if asleep:
            self.time.stop()
        self.router = RequestRouter(
            self._replicas(devices.initial, 0, asleep=asleep),
            devices.initial,
            devices,
            self._changes,
            waits=waits,
        )
        self._reading = reading
        # Epoch of the switch that made the parallelism in use; 0 if the configuration did.
        self.epoch = 0
        self._publish_lock = asyncio.Lock()
        self._rates = Rates()
        # Any first epoch is accepted.
        self._commands: CommandSlot[asyncio.Task[SwitchOutcome]] = CommandSlot()
        self._ended = asyncio.Event()
        self._failure: BaseException | None = None

    def _replicas(self, parallelism: Parallelism, epoch: int, *, asleep: bool = False) -> EngineReplicas:
        return EngineReplicas(
            self._devices.specs(parallelism, epoch),
            self._make,
            self._changes,
            self._fail,
            restarts=self._restarts,
            load_s=self._load_s,
            counters=self.counters,
            asleep=asleep,
        )

    @property
    def parallelism(self) -> Parallelism:
        """The pool's current parallelism."""
        return self.router.parallelism

    @property
    def live(self) -> int:
        """Number of engines that can generate."""
        return len(self.router.replicas.live)

    @property
    def running(self) -> int:
        return self.router.running

    @property
    def version(self) -> int:
        """The version that every live engine has, or a newer one."""
        return self.router.replicas.version

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts all engines at once; if one fails, none is left. Raises what Engine.start raises."""
        await self.router.replicas.start()
        self.router.replicas.watch()
        self._fill_standby()

    async def run(self) -> None:
        """Returns when the pool is stopped. Raises ProcessFailed, or the error of an engine that did not
        start again."""
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Ends all engines, also those of a switch that runs; requests in flight fail with EngineLost."""
        self._ended.set()
        if self._sleeping is not None:
            self._sleeping.cancel()
            await asyncio.gather(self._sleeping, return_exceptions=True)
        if (switch := self._commands.pending) is not None:
            switch.cancel()
            await asyncio.gather(switch, return_exceptions=True)
        await self.router.replicas.stop()
        if self._standby is not None:
            await self._standby.close()
        if self._copy is not None:
            await self._copy.close()

    def _fill_standby(self) -> None:
        if self._standby is not None:
            self._standby.fill()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._ended.set()

    # --- weights ------------------------------------------------------------------------------

    async def load(self, publication: Publication) -> None:
        """Loads a publication into every running engine, all at once; a dead one gets it when it is back.
        Waits while a switch compares engines.

        Raises VersionGone, another DataPlaneError or WeightsIncomplete.
        """
        async with self._publish_lock:
            if self._copy is not None:
                publication = await self._copy.bring(publication, self._load_s)
            await self.router.replicas.load(publication)

    @property
    def transfers(self) -> list[TransferTotals]:
        """Totals of what was read for all engines together, by path."""
        return [] if self._copy is None else self._copy.transfers

    @property
    def copy_reads(self) -> CopyReads | None:
        """Versions that were read for all engines together; None if they always apply what is published."""
        return None if self._copy is None else self._copy.reads

    async def wait_version(self, version: int) -> None:
        """Returns when all live engines have `version` or a newer one."""
        while self.version < version:
            await self._changes.wait()

    async def wait_other(self, version: int, timeout_s: float) -> None:
        """Returns when the version in use is no longer `version`, or after timeout_s."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.version == version:
                    await self._changes.wait()

    # --- sleep --------------------------------------------------------------------------------

    async def set_asleep(self, asleep: bool, turn: int) -> float:
        """Puts the engines to sleep, or wakes them and loads what was published last; returns the seconds
        that it took, 0 if they were so already.

        Turns in progress wait and continue afterwards. turn: grows with every command. A switch or a load in
        progress ends first. Cancelling the call leaves it running. Raises StaleEpoch for an older command
        than the last one, ProcessFailed if no weights can be loaded: the pool ends then.
        """
        self._sleeping = asyncio.create_task(self._set_asleep(asleep, turn), name=f"turn {turn}")
        return await asyncio.shield(self._sleeping)

    async def _set_asleep(self, asleep: bool, turn: int) -> float:
        async with self._sleep_lock:
            if turn < self._turn:
                raise StaleEpoch(
                    f"turn {turn} of {self._devices.base.name} is over: turn {self._turn} was commanded",
                    "command the newest turn",
                )
            self._turn = turn
            if asleep == self.asleep:
                return 0.0
            began_s = time.monotonic()
            if asleep:
                await self._sleep()
            else:
                await self._wake(began_s)
            return time.monotonic() - began_s

    async def _sleep(self) -> None:
        while (switch := self._commands.pending) is not None and not switch.done():
            await asyncio.wait([switch])
        async with self._publish_lock:
            self.asleep = True
            self.time.stop()
            self._slept_s = time.monotonic()
            try:
                await self.router.interrupt()
            except EarlError as error:
                log.warning("an engine of %s goes to sleep in mid-turn: %s", self._devices.base.name, error)
            await self.router.replicas.sleep()

    async def _wake(self, began_s: float) -> None:
        async with self._publish_lock:
            replicas = self.router.replicas
            try:
                async with self._reading(replicas.target.version, 2 * self._load_s):
                    await replicas.wake()
            except EarlError as error:
                self._fail(error)
                raise
            self.asleep = False
            self.router.resume()
            self.time.go_on()
            self.asleep_s += began_s - self._slept_s
            self.waking_s += time.monotonic() - began_s
        self._changes.tell()

    async def wait_awake(self) -> None:
        """Returns when the engines are not asleep."""
        while self.asleep:
            await self._changes.wait()

    # --- generation ---------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> Generation:
        """One turn, on the session's engine or on the least loaded one, also through a switch.

        Raises what Engine.generate_all raises. Cancelling aborts the request in the engine.
        """
        return await self.router.generate(request)

    async def release(self, session: str) -> None:
        """Ends the session: its KV may be dropped."""
        await self.router.release(session)

    async def stats(self) -> list[EngineStats | None]:
        """Stats of each engine, in order; None for one that is not running or does not answer."""
        return await self.router.replicas.stats()

    # --- switches -----------------------------------------------------------------------------

    async def reparallelize(
        self, command: SwitchCommand, awaited: Callable[[], bool] = lambda: True
    ) -> SwitchOutcome:
        """Brings the pool to the command's parallelism; the outcome has the reason if that failed.

        awaited: while the version in use cannot be read, whether that or a newer one is still waited for.
        Cancelling the call leaves the switch running. Raises IllegalParallelism, StaleEpoch, or
        ReshapeRefused: another switch runs, or the context of a turn that runs would not fit.
        """
        self._devices.resized(command.parallelism).check(command.parallelism)
        if self.asleep:
            raise ReshapeRefused(
                f"the engines of {self._devices.base.name} sleep while the trainer works",
                "send the command again when they are awake",
            )

        def begin(newest: SwitchCommand | None) -> asyncio.Task[SwitchOutcome]:
            running = self._commands.pending
            if newest is not None and running is not None and not running.done():
                raise ReshapeRefused(
                    f"{self._devices.base.name} is switching to {newest.parallelism}, epoch {newest.epoch}",
                    "send the command again when that has ended",
                )
            self._refuse_short(command.parallelism)
            return asyncio.create_task(self._reparallelize(command, awaited), name=f"switch {command.epoch}")

        return await asyncio.shield(self._commands.accept(command, begin))

    def _refuse_short(self, parallelism: Parallelism) -> None:
        longest = self.router.longest
        if parallelism != self.parallelism and not self._devices.holds(parallelism.tp, longest):
            raise ReshapeRefused(
                f"a session has a context of {longest} tokens, and an engine of tp {parallelism.tp} holds "
                f"only {self._devices.kv_tokens(parallelism.tp)}",
                "wait until it has ended, or raise rollout.kv_tokens",
            )

    async def _reparallelize(self, command: SwitchCommand, awaited: Callable[[], bool]) -> SwitchOutcome:
        old, new = self.parallelism, command.parallelism
        if new == old:
            self.epoch = command.epoch
            return SwitchOutcome(
                epoch=command.epoch, parallelism=new, message=f"its parallelism is {new} already"
            )

        if self._devices.most and new.devices != old.devices and new.replica == old.replica:
            return await self._resize(command)

        def warm(stats: Sequence[EngineStats]) -> bool:
            return fits_with_old(stats, self._devices, old, new, self._free_bytes())

        context = min(self._devices.longest_context(old.tp), self._devices.longest_context(new.tp))
        parts = SwitchParts(
            router=self.router,
            new=self._replicas(new, command.epoch),
            canary=Canary(f"canary {command.epoch}", self._devices.model.vocab, context),
            publish_lock=self._publish_lock,
            reading=self._reading,
            warm=warm,
            awaited=awaited,
            lost=self._fail,
        )
        switch = PoolSwitch(command, parts, self._rates)
        outcome = await switch.run()
        self._fill_standby()
        self._rates = switch.rates
        if not outcome.rolled_back:
            # With other devices, where they came or went with the replacement.
            self._devices, self.epoch = self._devices.resized(new), command.epoch
            self.router.resized(new, self._devices)
        return outcome

    async def _resize(self, command: SwitchCommand) -> SwitchOutcome:
        devices = self._devices.resized(command.parallelism)
        context = self._devices.longest_context(command.parallelism.tp)
        canary = Canary(f"canary {command.epoch}", self._devices.model.vocab, context)
        change = PoolResize(command, self.router, devices, canary, self._publish_lock, self._reading)
        outcome = await change.run()
        self._fill_standby()
        if not outcome.rolled_back:
            self._devices, self.epoch = devices, command.epoch
        self._changes.tell()
        return outcome
