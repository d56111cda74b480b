"""Moves sessions' KV from the engines of a switch that end to those that begin.

    round 1, while the old engines generate:  offer all ──► each new engine takes its sessions
    round 2, when every turn is interrupted:  offer the later tokens ──► the same engine continues them

KV that cannot be handed over, or is computed again sooner (kv_placement.py), is left to the new engine, which
computes whatever it lacks of the token ids: no result depends on a hand-over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from earl.errors import EarlError, EngineLost
from services.rollout.engines.contract.engine import Engine, KvOffer
from services.rollout.pool.kv_placement import Rates, place, worth_moving

log = logging.getLogger(__name__)

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

    async def round(self, tokens: Mapping[str, int], deadline_s: float) -> None:
        """Places sessions that have no place yet, and hands over what came since the last round.

        tokens: of every session. Raises EngineLost if a new engine has died; after another failure the KV is
        computed again.
        """
        name = f"{self.name}/{len(self._names)}"
        # Sessions that have ended keep their place: KV that was taken there is still to be released.
        self.placed |= place(
            tokens, len(self.new), self.places, self.placed, engine_tokens=self.engine_tokens
        )
        since = {session: count - self.moved.get(session, 0) for session, count in tokens.items()}
        worth = worth_moving(since, self.token_bytes, self.rates)
        if not worth:
            return
        known = dict(self.moved)
        known.update({session: ALL for session in tokens if session not in worth})
        self._names.append(name)
        offers = await asyncio.gather(*(self._offer(engine, name, known, deadline_s) for engine in self.old))
        given = [offer for offer in offers if offer is not None]
        failed = await asyncio.gather(
            *(self._take_placed(number, given, worth, deadline_s) for number in range(len(self.new)))
        )
        for session in set[str]().union(*failed):
            self.moved.pop(session, None)

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
        failed = [
            await self._take(self.new[number], offer, names, deadline_s)
            for names in (placed, {self.canary})
            for offer in offers
        ]
        return set[str]().union(*failed)

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
