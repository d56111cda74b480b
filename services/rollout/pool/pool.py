"""The pool: engines of equal tp over a worker's devices that look like one policy, whatever their cut.

    generate ─► traffic ─► members (k engines)        load(publication) ─► every engine
                   ▲            ▲
                   └─ switch ───┘  reparallelize: other engines take over while turns are under way

Promises: those of traffic.py, members.py and switch.py. One switch runs at a time; a command that was given
before gets the same outcome, while it runs or after; one of an older epoch is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from earl.errors import ReshapeRefused, StaleEpoch
from earl.obs.memory import available_bytes
from earl.parallelism import Parallelism
from earl.reparallelize import SwitchCommand, SwitchOutcome
from services.rollout.engines.contract.engine import (
    Engine,
    EngineSpec,
    EngineStats,
    GenerateRequest,
    Generation,
)
from services.rollout.pool.kv_placement import Rates
from services.rollout.pool.layouts import Cuts
from services.rollout.pool.memory_fit import fits_beside
from services.rollout.pool.parity import Canary
from services.rollout.pool.replicas import Changes, Members, Publication
from services.rollout.pool.router import Traffic
from services.rollout.pool.switch import PoolSwitch, SwitchParts

Reading = Callable[[Publication, float], AbstractAsyncContextManager[None]]


def always_readable(publication: Publication, lease_s: float) -> AbstractAsyncContextManager[None]:
    """The Reading of publications that nobody withdraws."""
    return nullcontext()


class EnginePool:
    """make: builds an engine of a spec. load_s: bound of loading one version into one engine.

    waits: turns that the cut in use cannot hold wait for one that can, because somebody orders switches.
    free_bytes: what processes of the host may still take; new engines start beside the old where that holds
    them. reading: keeps a publication readable for so many seconds at most.
    """

    def __init__(
        self,
        cuts: Cuts,
        make: Callable[[EngineSpec], Engine],
        *,
        restarts: int,
        load_s: float,
        waits: bool = False,
        free_bytes: Callable[[], int] = available_bytes,
        reading: Reading = always_readable,
    ) -> None:
        self._cuts = cuts
        self._free_bytes = free_bytes
        self._make = make
        self._restarts = restarts
        self._load_s = load_s
        self._changes = Changes()
        self.traffic = Traffic(self._members(cuts.first, 0), cuts.first, cuts, self._changes, waits=waits)
        self._reading = reading
        # Of the switch that cut the devices as they are; 0: the configuration did.
        self.epoch = 0
        self._publish_lock = asyncio.Lock()
        self._rates = Rates()
        self._last: SwitchCommand | None = None
        self._switch: asyncio.Task[SwitchOutcome] | None = None
        self._over = asyncio.Event()
        self._failure: BaseException | None = None

    def _members(self, cut: Parallelism, epoch: int) -> Members:
        return Members(
            self._cuts.specs(cut, epoch),
            self._make,
            self._changes,
            self._fail,
            restarts=self._restarts,
            load_s=self._load_s,
        )

    @property
    def parallelism(self) -> Parallelism:
        """How the devices are cut now."""
        return self.traffic.cut

    @property
    def live(self) -> int:
        """Engines that can generate."""
        return len(self.traffic.members.live)

    @property
    def running(self) -> int:
        return self.traffic.running

    @property
    def version(self) -> int:
        """What all live engines have at least."""
        return self.traffic.members.version

    # --- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts all engines at once; if one fails, none is left. Raises what Engine.start raises."""
        await self.traffic.members.start()
        self.traffic.members.watch()

    async def run(self) -> None:
        """Returns when the pool is stopped. Raises ProcessFailed, or why an engine did not start again."""
        await self._over.wait()
        if self._failure is not None:
            raise self._failure

    async def stop(self) -> None:
        """Ends all engines, those of a switch under way too; requests in flight fail with EngineLost."""
        self._over.set()
        if self._switch is not None:
            self._switch.cancel()
            await asyncio.gather(self._switch, return_exceptions=True)
        await self.traffic.members.stop()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._over.set()

    # --- weights ------------------------------------------------------------------------------

    async def load(self, publication: Publication) -> None:
        """Brings every engine that runs to it, all at once; a dead one gets it when it is back. Waits
        while a switch compares engines.

        Raises VersionGone, another DataPlaneError or WeightsIncomplete; nothing is half-loaded and used.
        """
        async with self._publish_lock:
            await self.traffic.members.load(publication)

    async def wait_version(self, version: int) -> None:
        """Returns when all live engines have `version` or a newer one."""
        while self.version < version:
            await self._changes.wait()

    async def wait_other(self, version: int, timeout_s: float) -> None:
        """Returns when `version` is no longer the one in use, or after timeout_s."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.version == version:
                    await self._changes.wait()
        except TimeoutError:
            return

    # --- generation ---------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> Generation:
        """One turn, on the session's engine or on the least loaded one, whatever switches meanwhile.

        Raises what Engine.generate_all raises. Cancelling aborts the request in the engine.
        """
        return await self.traffic.generate(request)

    async def release(self, session: str) -> None:
        """The episode is over: its KV may go."""
        await self.traffic.release(session)

    async def stats(self) -> list[EngineStats | None]:
        """Of each engine, in order; None for one that is not running or does not answer."""
        return await self.traffic.members.stats()

    # --- switches -----------------------------------------------------------------------------

    async def reparallelize(self, command: SwitchCommand) -> SwitchOutcome:
        """Split the devices as the command says; the outcome gives the reason if they are split as before.

        Cancelling the call leaves the switch running. Raises IllegalParallelism, StaleEpoch, or
        ReshapeRefused: another switch runs, or a turn under way would not fit.
        """
        self._cuts.check(command.parallelism)
        if self._last is not None and self._switch is not None:
            last = self._last
            if command.epoch == last.epoch and command.parallelism == last.parallelism:
                return await asyncio.shield(self._switch)
            if command.epoch <= last.epoch:
                raise StaleEpoch(
                    f"epoch {command.epoch} ({command.parallelism}) is not newer than epoch {last.epoch} "
                    f"({last.parallelism})",
                    "the scheduler's next command has a newer one",
                )
            if not self._switch.done():
                raise ReshapeRefused(
                    f"{self._cuts.base.name} is on its way to {last.parallelism}, epoch {last.epoch}",
                    "command it again when that is over",
                )
        self._refuse_short(command.parallelism)
        self._last = command
        self._switch = asyncio.create_task(self._reparallelize(command), name=f"switch {command.epoch}")
        return await asyncio.shield(self._switch)

    def _refuse_short(self, cut: Parallelism) -> None:
        longest = self.traffic.longest
        if cut != self.parallelism and not self._cuts.holds(cut.tp, longest):
            raise ReshapeRefused(
                f"a context of {longest} tokens is under way, and the KV of an engine of tp {cut.tp} holds "
                f"{self._cuts.kv_tokens(cut.tp)}",
                "wait until it has ended, or raise rollout.kv_tokens",
            )

    async def _reparallelize(self, command: SwitchCommand) -> SwitchOutcome:
        old, new = self.parallelism, command.parallelism
        if new == old:
            self.epoch = command.epoch
            return SwitchOutcome(
                epoch=command.epoch, parallelism=new, message=f"its parallelism is {new} already"
            )

        def warm(stats: Sequence[EngineStats]) -> bool:
            return fits_beside(stats, self._cuts, old, new, self._free_bytes())

        room = min(self._cuts.longest(old.tp), self._cuts.longest(new.tp))
        parts = SwitchParts(
            traffic=self.traffic,
            new=self._members(new, command.epoch),
            canary=Canary(f"canary {command.epoch}", self._cuts.model.vocab, room),
            publish_lock=self._publish_lock,
            reading=self._reading,
            warm=warm,
            lost=self._fail,
        )
        switch = PoolSwitch(command, parts, self._rates)
        outcome = await switch.run()
        self._rates = switch.rates
        if not outcome.rolled_back:
            self.epoch = command.epoch
        return outcome
