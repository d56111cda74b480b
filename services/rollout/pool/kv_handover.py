"""Moves sessions' KV from the engines of a switch that end to those that begin.

    rounds ahead, while the old engines generate:  offer ──► each new engine takes its sessions ──┐
           ▲                                                                                      │
           └── what came meanwhile, until it is little ◄──────────────────────────────────────────┘
    the last round, when every turn is interrupted:  offer the rest ──► the same engine continues the sessions

The rounds ahead are those of pre-copy live migration (Clark et al., NSDI 2005): each one copies what was
added during the one before, so the last one, for which turns wait, copies what a few steps added. Written KV
never changes, so nothing is copied twice.

KV that cannot be handed over, or is computed again sooner (kv_placement.py), is left to the new engine, which
computes whatever it lacks of the token ids: no result depends on a hand-over.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from earl.errors import EarlError, EngineLost
from services.rollout.engines.contract.engine import Engine, KvOffer
from services.rollout.pool.kv_placement import Rates, place, worth_moving
from services.rollout.pool.router import forget

log = logging.getLogger(__name__)

# Rounds of one `catch_up`, at most: each one takes cores from the turns that run.
ROUNDS = 4
# More tokens than a session can have: none of its KV is offered.
ALL = 1 << 40


@dataclass(slots=True)
class KvHandover:
    """The hand-over of one switch.

    name: unique to the switch. token_bytes: of one token's KV on all ranks. places, engine_tokens: how many
    sessions and tokens one new engine holds. canary: a session that every new engine takes, if it has a place
    left.
    """

    name: str
    old: Sequence[Engine]
    new: Sequence[Engine]
    places: int
    engine_tokens: int
    token_bytes: int
    rates: Rates
    canary: str = ""
    # Session -> number of the new engine that it goes to.
    placed: dict[str, int] = field(default_factory=dict)
    # Session -> tokens whose KV the new engine has.
    moved: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    _names: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """Rounds that were done, without those that had nothing to move."""
        return len(self._names)

    def place(self, tokens: Mapping[str, int]) -> None:
        """Chooses new engines for sessions that have none yet."""
        self.placed |= place(
            tokens, len(self.new), self.places, self.placed, engine_tokens=self.engine_tokens
        )

    async def catch_up(self, tokens: Callable[[], Mapping[str, int]], deadline_s: float) -> None:
        """Does rounds while turns run, until one was shorter than its fixed cost, or not shorter than the one
        before, or ROUNDS were done. Raises EngineLost if a new engine has died."""
        before = math.inf
        for _ in range(ROUNDS):
            moved = await self.round(tokens(), deadline_s, ahead=True)
            if not self.rates.large(moved, self.token_bytes) or moved >= before:
                return
            before = moved

    async def round(self, tokens: Mapping[str, int], deadline_s: float, *, ahead: bool) -> int:
        """Places sessions that have no place yet, and hands over what came since the last round; returns how
        many tokens that were.

        tokens: of every session. ahead: turns run, whose last tokens are not among those; what was begun is
        then continued, however little came. Raises EngineLost if a new engine has died; after another failure
        the KV is computed again.
        """
        name = f"{self.name}/{len(self._names)}"
        await self._release_ended(tokens)
        self.place(tokens)
        # The last token of a context has no KV yet.
        since = {session: max(0, count - 1 - self.moved.get(session, 0)) for session, count in tokens.items()}
        worth = worth_moving(since, self.token_bytes, self.rates)
        if ahead:
            worth |= self.moved.keys() & tokens.keys()
        if not worth:
            return 0
        known = dict(self.moved)
        known.update({session: ALL for session in tokens if session not in worth})
        self._names.append(name)
        offers = await asyncio.gather(*(self._offer(engine, name, known, deadline_s) for engine in self.old))
        given = [offer for offer in offers if offer is not None]
        before = sum(self.moved.values())
        failed = await asyncio.gather(
            *(self._take_placed(number, given, worth, deadline_s) for number in range(len(self.new)))
        )
        moved = sum(self.moved.values()) - before
        for session in set[str]().union(*failed):
            self.moved.pop(session, None)
        return max(0, moved)

    async def _release_ended(self, tokens: Mapping[str, int]) -> None:
        """Gives the places back of sessions that have ended, also where a later part of their KV failed."""
        for session in self.placed.keys() - tokens.keys():
            self.moved.pop(session, None)
            await forget(self.new[self.placed.pop(session)], [session])

    async def close(self) -> None:
        """Withdraws all offers. Not between the rounds: the second one uses the memory of the first."""
        for name in self._names:
            await asyncio.gather(*(_withdraw(engine, name) for engine in self.old))

    async def _offer(
        self, engine: Engine, name: str, known: Mapping[str, int], deadline_s: float
    ) -> KvOffer | None:
        try:
            return await engine.offer_kv(name, known, deadline_s)
        except EarlError as error:
            log.info("engine %s offers no KV: %s", engine.spec.name, error)
            return None

    async def _take_placed(
        self, number: int, offers: Sequence[KvOffer], worth: set[str], deadline_s: float
    ) -> set[str]:
        """New engine `number` takes the sessions that are placed there; returns those that it did not take.

        The canary comes last, and alone, so that it costs no session its place.
        """
        placed = {session for session in worth if self.placed.get(session) == number}
        failed = set[str]()
        for names in (placed, {self.canary}):
            takes = (self._take(self.new[number], offer, names, deadline_s) for offer in offers)
            failed = failed.union(*await asyncio.gather(*takes))
        return failed

    async def _take(self, engine: Engine, offer: KvOffer, names: set[str], deadline_s: float) -> set[str]:
        """An engine takes the named sessions of an offer; returns those that it did not take."""
        # Only KV that begins where the engine's ends is of use.
        sessions = [
            session
            for session in offer.sessions
            if session.session in names and session.first <= self.moved.get(session.session, 0)
        ]
        taken = {session.session for session in sessions}
        if not sessions:
            return taken
        try:
            report = await engine.take_kv(msgspec.structs.replace(offer, sessions=sessions), deadline_s)
        except EngineLost:
            raise
        except EarlError as error:
            log.info("engine %s takes no KV: %s", engine.spec.name, error)
            return taken
        self.size_bytes += report.size_bytes
        self.rates = self.rates.read(report.size_bytes, report.seconds)
        self.moved.update({session.session: session.first + len(session.ids) for session in sessions})
        return set(report.left_out)


async def _withdraw(engine: Engine, name: str) -> None:
    with suppress(EarlError):
        await engine.withdraw_kv(name)
