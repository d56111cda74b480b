"""Requests on their way to engines that may be replaced under them.

                     ┌─► engine 0 (processes) ──┐
    generate ────────┤   least loaded, or the   ├──► Generation     interrupt: every turn ends with what it
       ▲             └─► session's last one ────┘        │          has and waits here; `use` lets it go on
       └───────────────── ids + what there is ◄── interrupted       where its session is now

Promises: a session stays on one engine while that engine lives and serves; an interrupted turn goes on from
its token ids and comes back as one Generation; an engine that dies fails its own requests with EngineLost. A
turn that the engines' KV cannot hold waits for engines that can, if the devices could be cut into such and
somebody may order it; otherwise ContextTooLong.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from earl.errors import ContextTooLong, EarlError, EngineLost
from earl.parallelism import Parallelism
from services.rollout.engines.contract.engine import Engine, GenerateRequest, Generation
from services.rollout.pool.layouts import Cuts
from services.rollout.pool.replicas import Changes, Member, Members
from services.rollout.pool.turn import Turn


@dataclass(slots=True, eq=False)
class Session:
    """An episode's place. tokens: of its context; needs: how long that may become in the turn under way."""

    member: Member | None = None
    tokens: int = 0
    needs: int = 0


class Traffic:
    """members, cut: the engines in use, and how they cut the devices. waits: a turn that does not fit may
    wait for another cut."""

    def __init__(
        self, members: Members, cut: Parallelism, cuts: Cuts, changes: Changes, *, waits: bool
    ) -> None:
        self.members = members
        self.cut = cut
        self._cuts = cuts
        self._changes = changes
        self._waits = waits
        self._sessions: dict[str, Session] = {}
        self._open = True
        self._interrupts = 0
        # Turns that were continued since the start.
        self.continued = 0
        # By session: the longest that a context wants to be which the engines in use cannot hold.
        self.blocked: dict[str, int] = {}
        # Turns that no cut could hold, since the start.
        self.refused = 0
        # Values of tp that were tried and found wanting: nobody waits for them.
        self.spoilt: set[int] = set()

    @property
    def running(self) -> int:
        return sum(member.running for member in self.members.all)

    @property
    def sessions(self) -> dict[str, int]:
        """Tokens of every session's context."""
        return {name: session.tokens for name, session in self._sessions.items()}

    @property
    def longest(self) -> int:
        """Tokens that a context has or may get in its turn, at most; without those that are blocked."""
        return max(
            (max(one.tokens, one.needs) for name, one in self._sessions.items() if name not in self.blocked),
            default=0,
        )

    # --- generation ---------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> Generation:
        """One turn; waits while no engine is alive. Raises what Engine.generate_all raises.

        Cancelling aborts the request in the engine.
        """
        # Without a session of its own its KV could not follow it to another engine.
        name = request.session or f"request {request.request_id}"
        turn = Turn(msgspec.structs.replace(request, session=name))
        session = self._sessions.setdefault(name, Session())
        session.tokens, session.needs = turn.tokens, turn.needs
        try:
            while True:
                engine = await self._engine_of(session)
                interrupts = self._interrupts
                try:
                    made = turn.add(await self._ask(session, engine, turn.rest()))
                except ContextTooLong as error:
                    await self._wait_for_room(name, turn.needs, error)
                    continue
                session.tokens = turn.tokens
                if made.finish != "abort" or interrupts == self._interrupts:
                    return made
                self.continued += 1
        finally:
            session.needs = 0
            if not request.session:
                await self.release(name)

    async def _engine_of(self, session: Session) -> Engine:
        """The session's engine, or the least loaded one, which is then the session's."""
        while True:
            if self._open:
                member = session.member
                if member is None or not member.live:
                    live = self.members.live
                    member = min(live, key=lambda one: one.running) if live else None
                if member is not None and member.engine is not None:
                    session.member = member
                    return member.engine
            await self._changes.wait()

    @staticmethod
    async def _ask(session: Session, engine: Engine, request: GenerateRequest) -> Generation:
        member = session.member
        assert member is not None
        member.running += 1
        try:
            return await engine.generate_all(request)
        finally:
            if member.engine is engine:
                member.running -= 1

    async def _wait_for_room(self, name: str, tokens: int, error: ContextTooLong) -> None:
        """Returns when other engines are in use. Raises the error if no cut would hold the context."""
        members = self.members
        try:
            while members is self.members:
                wider = self._cuts.wider(self.cut.tp, tokens) if self._waits else []
                if all(cut.tp in self.spoilt for cut in wider):
                    self.refused += 1
                    raise error
                self.blocked[name] = tokens
                await self._changes.wait()
        finally:
            self.blocked.pop(name, None)

    async def release(self, session: str) -> None:
        """The episode is over: its KV may go."""
        released = self._sessions.pop(session, None)
        if released is not None and released.member is not None and released.member.engine is not None:
            await released.member.engine.release(session)

    # --- switches -----------------------------------------------------------------------------

    async def interrupt(self) -> float:
        """Every turn ends in its engine and waits here; the engines are idle then, and not paused.

        Returns when the first of them was, in monotonic seconds. Dead engines have no turns any more. Raises
        DeadlineExceeded for one that does not answer.
        """
        self._open = False
        self._interrupts += 1
        idle = await asyncio.gather(*(self._interrupt(engine) for engine in self.members.engines))
        return min(idle, default=time.monotonic())

    @staticmethod
    async def _interrupt(engine: Engine) -> float:
        try:
            # Both are said at once: whatever becomes of this call, no engine stays paused.
            await asyncio.gather(engine.pause(keep=False), engine.resume())
        except EngineLost:
            pass  # its turns have failed with it
        return time.monotonic()

    def spoil(self, tp: int) -> None:
        """A cut that is of no use: nobody waits for it any more."""
        self.spoilt.add(tp)
        self._changes.tell()

    def go_on(self) -> None:
        """Interrupted turns go on."""
        self._open = True
        self._changes.tell()

    def use(
        self, members: Members, cut: Parallelism, seats: Mapping[str, Member]
    ) -> list[tuple[Member, str]]:
        """Turns go on with other engines. seats: where sessions are now; others go where there is room.

        Returns the seats of sessions that ended meanwhile.
        """
        self.members, self.cut = members, cut
        for name, session in self._sessions.items():
            session.member = seats.get(name)
        self.go_on()
        return [(member, name) for name, member in seats.items() if name not in self._sessions]


async def forget(engine: Engine, sessions: list[str]) -> None:
    """Release sessions where that is no duty: an engine that is gone has none."""
    for session in sessions:
        try:
            await engine.release(session)
        except EarlError:
            return
