"""Routes turns to engines that may be replaced while the turns run.

                     ┌─► engine 0 (processes) ──┐
    generate ────────┤   session's last one, or  ├──► Generation    interrupt: every turn ends with what it
       ▲             └─► preferred, least loaded ┘       │          has and waits here; `use` continues it
       └───────────── ids + sampled tokens ◄───── interrupted       where its session is now, `move` one
                                                                    session at another engine

Promises: a session stays on one engine while that engine lives and is in use, unless it is moved; an
interrupted turn continues from its token ids and is returned as one Generation; an engine that dies fails
its own requests with EngineLost. A turn that the engines' KV cannot hold waits for engines that can, if the
devices allow such and switches are ordered in this run; otherwise ContextTooLong. So does one that waits for
devices of other stages, until the scheduler answers that no division of the pool holds it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from earl.errors import ContextTooLong, EarlError, EngineLost
from earl.parallelism import Parallelism
from services.rollout.engines.contract.engine import Engine, GenerateRequest, Generation
from services.rollout.pool.devices import PoolDevices
from services.rollout.pool.replicas import ChangeNotifier, EngineReplica, EngineReplicas
from services.rollout.pool.turn import ResumableTurn


@dataclass(slots=True, eq=False)
class SessionRoute:
    """The route of a session's turns. tokens: of its context; most_tokens: what that may become in the turn
    that runs, 0 between turns. prompt_tokens: of its first turn. request: the id of the turn that runs, ""
    between turns. moves: how often it was moved; left: engines that it was moved from in its turn. preferred:
    the index of the engine that it begins at, if that lives."""

    replica: EngineReplica | None = None
    tokens: int = 0
    most_tokens: int = 0
    prompt_tokens: int = 0
    request: str = ""
    moves: int = 0
    left: list[Engine] = field(default_factory=list)
    preferred: int | None = None


class RequestRouter:
    """Routes turns to the engines in use.

    replicas, parallelism: the engines in use. devices: what those and other engines are on. waits: a turn
    that does not fit may wait for another parallelism.
    """

    def __init__(
        self,
        replicas: EngineReplicas,
        parallelism: Parallelism,
        devices: PoolDevices,
        changes: ChangeNotifier,
        *,
        waits: bool,
    ) -> None:
        self.replicas = replicas
        self.parallelism = parallelism
        self._devices = devices
        self._changes = changes
        self._waits = waits
        self._sessions: dict[str, SessionRoute] = {}
        # By session that may begin: the index of the engine that it is for.
        self._preferred: dict[str, int] = {}
        self._open = True
        self._interrupts = 0
        # Turns that were continued since the start, and sessions that were moved.
        self.continued = self.moved = 0
        # By session that waits: tokens of a context that the engines in use cannot hold.
        self.blocked: dict[str, int] = {}
        # Turns that no parallelism could hold, since the start.
        self.refused = 0
        # Values of tp that failed parity: no turn waits for them.
        self._failed_tps: set[int] = set()
        # Sessions that wait, and that no division of the run's devices holds.
        self._unheld: set[str] = set()

    @property
    def running(self) -> int:
        return sum(replica.running for replica in self.replicas.all)

    @property
    def sessions(self) -> dict[str, int]:
        """Tokens of each session's context."""
        return {name: session.tokens for name, session in self._sessions.items()}

    @property
    def longest(self) -> int:
        """Tokens of the longest context, as it is or may become in its turn; without blocked ones."""
        return max(
            (
                max(session.tokens, session.most_tokens)
                for name, session in self._sessions.items()
                if name not in self.blocked
            ),
            default=0,
        )

    def prefer(self, session: str, engine: int | None) -> None:
        """Lets a session begin at the engine of this index, if that lives then; None: at any."""
        if engine is None:
            self._preferred.pop(session, None)
        else:
            self._preferred[session] = engine

    # --- generation ---------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> Generation:
        """One turn; waits while no engine is alive. Raises what Engine.generate_all raises.

        Cancelling aborts the request in the engine.
        """
        # Without a session its KV could not move to another engine.
        name = request.session or f"request {request.request_id}"
        turn = ResumableTurn(msgspec.structs.replace(request, session=name))
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = SessionRoute(preferred=self._preferred.get(name))
        session.tokens, session.most_tokens = turn.tokens, turn.most_tokens
        session.prompt_tokens = session.prompt_tokens or turn.tokens
        try:
            while True:
                engine = await self._engine_of(session)
                interrupts = self._interrupts, session.moves
                session.request = request.request_id
                try:
                    answer = turn.add(await self._ask(session, engine, turn.rest()))
                except ContextTooLong as error:
                    session.request = ""
                    await self._wait_for_wider(name, turn.most_tokens, error)
                    continue
                finally:
                    session.request = ""
                session.tokens = turn.tokens
                await self._leave(name, session)
                if answer.finish != "abort" or interrupts == (self._interrupts, session.moves):
                    return answer
                self.continued += interrupts[0] != self._interrupts
        finally:
            session.most_tokens = 0
            await self._leave(name, session)
            if not request.session:
                await self.release(name)

    @staticmethod
    async def _leave(name: str, session: SessionRoute) -> None:
        """Gives the session's KV back where it was moved from: its turn has ended there."""
        left, session.left = session.left, []
        for engine in left:
            await forget(engine, [name])

    async def _engine_of(self, session: SessionRoute) -> Engine:
        """The session's engine, or the one that it begins at, or the least loaded one: then the session's."""
        while True:
            if self._open:
                replica = session.replica
                if replica is None or not replica.live:
                    replica = self._first_of(session)
                if replica is not None and replica.engine is not None:
                    session.replica = replica
                    return replica.engine
            await self._changes.wait()

    def _first_of(self, session: SessionRoute) -> EngineReplica | None:
        """The engine that a session without one gets; None if none lives."""
        place, session.preferred = session.preferred, None
        replicas, live = list(self.replicas.all), self.replicas.live
        if place is not None and place < len(replicas) and replicas[place].live:
            return replicas[place]
        return min(live, key=lambda replica: replica.running) if live else None

    @staticmethod
    async def _ask(session: SessionRoute, engine: Engine, request: GenerateRequest) -> Generation:
        replica = session.replica
        assert replica is not None
        replica.running += 1
        try:
            return await engine.generate_all(request)
        finally:
            if replica.engine is engine:
                replica.running -= 1

    async def _wait_for_wider(self, name: str, tokens: int, error: ContextTooLong) -> None:
        """Returns when other engines are in use. Raises the error if no parallelism could hold the
        context."""
        replicas = self.replicas
        try:
            while replicas is self.replicas:
                wider = self._devices.wider(self.parallelism.tp, tokens) if self._waits else []
                if name in self._unheld or self._failed_tps.issuperset(wider):
                    self.refused += 1
                    raise error
                self.blocked[name] = tokens
                await self._changes.wait()
        finally:
            self.blocked.pop(name, None)
            self._unheld.discard(name)

    def refuse(self, tokens: int) -> None:
        """No division of the run's devices holds a context of so many tokens: turns with such a context,
        which wait, end with ContextTooLong."""
        self._unheld |= {name for name, blocked in self.blocked.items() if blocked >= tokens}
        self._changes.tell()

    async def release(self, session: str) -> None:
        """Ends the session: its KV may be dropped."""
        released = self._sessions.pop(session, None)
        if released is not None and released.replica is not None and released.replica.engine is not None:
            await released.replica.engine.release(session)

    # --- sequences that move ------------------------------------------------------------------

    def sequences(self, engines: Sequence[EngineReplica]) -> dict[str, tuple[int, int, int]]:
        """Returns, by session at one of these engines, (the engine's index, tokens of the context, those
        after the first prompt).

        Tokens that a running turn has sampled do not count. Sessions that wait for other engines are left
        out.
        """
        places = {replica: place for place, replica in enumerate(engines)}
        return {
            name: (places[session.replica], session.tokens, session.tokens - session.prompt_tokens)
            for name, session in self._sessions.items()
            if session.replica in places and name not in self.blocked
        }

    async def move(self, name: str, target: EngineReplica) -> bool:
        """Continues a session at another engine, from its token ids: the KV that it had is computed again.

        False if there is nothing to do: the session has ended or has no engine, the engine is not in use,
        does not live or has the session.
        """
        session = self._sessions.get(name)
        source = session.replica if session is not None else None
        usable = self._open and target.live and target in self.replicas.all
        if session is None or source is None or source.engine is None or source is target or not usable:
            return False
        session.replica = target
        session.moves += 1
        self.moved += 1
        if session.request:
            session.left.append(source.engine)
            await source.engine.abort(session.request)
        else:
            await forget(source.engine, [name])
        return True

    # --- switches -----------------------------------------------------------------------------

    async def interrupt(self) -> float:
        """Ends every turn in its engine; turns then wait here, and the engines are idle but not paused.

        Returns the monotonic time at which the first engine was idle. Dead engines have no turns any more.
        Raises DeadlineExceeded for one that does not answer.
        """
        self._open = False
        self._interrupts += 1
        idle = await asyncio.gather(*(self._interrupt(engine) for engine in self.replicas.engines))
        return min(idle, default=time.monotonic())

    @staticmethod
    async def _interrupt(engine: Engine) -> float:
        try:
            # Both are sent at once: however this call ends, no engine stays paused.
            await asyncio.gather(engine.pause(keep=False), engine.resume())
        except EngineLost:
            pass  # its turns have failed with it
        return time.monotonic()

    async def hand_over(self, leaving: Collection[EngineReplica], devices: PoolDevices) -> None:
        """Continues the turns of some engines, which are about to leave, with the others. devices: of those.

        Raises DeadlineExceeded for one that does not answer: its turns fail with it.
        """
        self._interrupts += 1
        self._devices = devices
        for session in self._sessions.values():
            if session.replica in leaving:
                session.replica = None
        await asyncio.gather(
            *(self._interrupt(replica.engine) for replica in leaving if replica.engine is not None)
        )

    def resized(self, parallelism: Parallelism, devices: PoolDevices) -> None:
        """The pool has other devices, whose engines are in use."""
        self.parallelism, self._devices = parallelism, devices
        self._changes.tell()

    def exclude(self, tp: int) -> None:
        """Engines of this tp failed parity: no turn waits for them any more."""
        self._failed_tps.add(tp)
        self._changes.tell()

    def resume(self) -> None:
        """Continues interrupted turns."""
        self._open = True
        self._changes.tell()

    def use(
        self, replicas: EngineReplicas, parallelism: Parallelism, placement: Mapping[str, EngineReplica]
    ) -> list[tuple[EngineReplica, str]]:
        """Continues turns with other engines. placement: where sessions are now; other sessions go to the
        least loaded engine.

        Returns (engine, session) of the placement for each session that ended meanwhile.
        """
        self.replicas, self.parallelism = replicas, parallelism
        for name, session in self._sessions.items():
            session.replica = placement.get(name)
        self.resume()
        return [(replica, name) for name, replica in placement.items() if name not in self._sessions]


async def forget(engine: Engine, sessions: list[str]) -> None:
    """Releases sessions of an engine; nothing if the engine has died: it has none then."""
    for session in sessions:
        try:
            await engine.release(session)
        except EarlError:
            return
