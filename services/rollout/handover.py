"""KV of sessions on its way from the engines that end to those that begin.

    round 1, while the old engines generate:  offer all ──► each new engine takes its sessions
    round 2, when every turn is interrupted:  offer what came since ──► the same engine continues them

What cannot be handed over, or is computed again sooner (placing.py), is left to the new engine, which finds
out from the token ids: nothing here is needed for being right.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from earl.errors import EarlError, EngineLost
from services.rollout.engines.base import Engine, KvOffer, KvSession
from services.rollout.placing import Rates, place, worth_moving

log = logging.getLogger(__name__)

# More than a session can have: nothing of it came since.
ALL = 1 << 40


@dataclass(slots=True)
class Handover:
    """name: unique to the switch. token_bytes: of one token's KV on all ranks. places: sessions of one new
    engine. everywhere: sessions that every new engine takes (the canary's)."""

    name: str
    old: Sequence[Engine]
    new: Sequence[Engine]
    places: int
    token_bytes: int
    rates: Rates
    everywhere: frozenset[str] = frozenset()
    # Session -> number of the new engine that it goes to.
    placed: dict[str, int] = field(default_factory=dict)
    # Session -> tokens whose KV is there.
    moved: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    # Of all takes together, engine by engine.
    seconds: float = 0.0
    _rounds: int = 0

    async def round(self, tokens: Mapping[str, int], deadline_s: float) -> None:
        """Places sessions that have no place yet, and hands over what came since the last round.

        tokens: of every session. Raises EngineLost if a new engine is gone; another failure only costs
        that the KV is computed again.
        """
        self._rounds += 1
        name = f"{self.name}/{self._rounds}"
        # Sessions that have ended keep their place: what was taken there is still to be released.
        self.placed |= place(tokens, len(self.new), self.places, self.placed)
        since = {session: count - self.moved.get(session, 0) for session, count in tokens.items()}
        worth = worth_moving(since, self.token_bytes, self.rates)
        known = dict(self.moved)
        known.update({session: ALL for session in tokens if session not in worth})
        try:
            offers = await asyncio.gather(
                *(self._offer(engine, name, known, deadline_s) for engine in self.old)
            )
            given = [offer for offer in offers if offer is not None]
            failed = await asyncio.gather(
                *(self._take(number, given, deadline_s) for number in range(len(self.new)))
            )
            for session in set[str]().union(*failed):
                self.moved.pop(session, None)
            self.rates = self.rates.read(self.size_bytes, self.seconds)
        finally:
            await asyncio.gather(*(_withdraw(engine, name) for engine in self.old))

    async def _offer(
        self, engine: Engine, name: str, known: Mapping[str, int], deadline_s: float
    ) -> KvOffer | None:
        try:
            return await engine.offer_kv(name, known, deadline_s)
        except EarlError as error:
            log.info("engine %s offers no KV: %s", engine.spec.name, error)
            return None

    async def _take(self, number: int, offers: Sequence[KvOffer], deadline_s: float) -> set[str]:
        """Returns the sessions that were not taken."""
        engine, failed = self.new[number], set[str]()
        for offer in offers:
            mine = [one for one in offer.sessions if self._goes_to(one, number)]
            if not mine:
                continue
            try:
                report = await engine.take_kv(msgspec.structs.replace(offer, sessions=mine), deadline_s)
            except EngineLost:
                raise
            except EarlError as error:
                log.info("engine %s takes no KV: %s", engine.spec.name, error)
                failed.update(one.session for one in mine)
                continue
            self.size_bytes += report.size_bytes
            self.seconds += report.seconds
            for one in mine:
                self.moved[one.session] = one.first + len(one.ids)
        return failed

    def _goes_to(self, one: KvSession, number: int) -> bool:
        """What continues nothing that is there is of no use."""
        here = one.session in self.everywhere or self.placed.get(one.session) == number
        return here and one.first <= self.moved.get(one.session, 0)


async def _withdraw(engine: Engine, name: str) -> None:
    with suppress(EarlError):
        await engine.withdraw_kv(name)
