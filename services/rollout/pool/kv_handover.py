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
from services.rollout.engines.contract.engine import Engine, KvOffer
from services.rollout.pool.kv_placement import Rates, place, worth_moving

log = logging.getLogger(__name__)

# More than a session can have: nothing of it came since.
ALL = 1 << 40


@dataclass(slots=True)
class Handover:
    """name: unique to the switch. token_bytes: of one token's KV on all ranks. places, room_tokens: what one
    new engine holds. canary: a session that every new engine takes, if it has a place left."""

    name: str
    old: Sequence[Engine]
    new: Sequence[Engine]
    places: int
    room_tokens: int
    token_bytes: int
    rates: Rates
    canary: str = ""
    # Session -> number of the new engine that it goes to.
    placed: dict[str, int] = field(default_factory=dict)
    # Session -> tokens whose KV is there.
    moved: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    _names: list[str] = field(default_factory=list)

    async def round(self, tokens: Mapping[str, int], deadline_s: float) -> None:
        """Places sessions that have no place yet, and hands over what came since the last round.

        tokens: of every session. Raises EngineLost if a new engine is gone; another failure only costs
        that the KV is computed again.
        """
        name = f"{self.name}/{len(self._names)}"
        # Sessions that have ended keep their place: what was taken there is still to be released.
        self.placed |= place(tokens, len(self.new), self.places, self.placed, room_tokens=self.room_tokens)
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
            *(self._take_mine(number, given, worth, deadline_s) for number in range(len(self.new)))
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

    async def _take_mine(
        self, number: int, offers: Sequence[KvOffer], worth: set[str], deadline_s: float
    ) -> set[str]:
        """Returns the sessions that were not taken. The canary comes last, and alone: it is to cost no
        session its place."""
        mine = {session for session in worth if self.placed.get(session) == number}
        failed = [
            await self._take(self.new[number], offer, wanted, deadline_s)
            for wanted in (mine, {self.canary})
            for offer in offers
        ]
        return set[str]().union(*failed)

    async def _take(self, engine: Engine, offer: KvOffer, wanted: set[str], deadline_s: float) -> set[str]:
        # What continues nothing that is there is of no use.
        sessions = [
            one
            for one in offer.sessions
            if one.session in wanted and one.first <= self.moved.get(one.session, 0)
        ]
        names = {one.session for one in sessions}
        if not sessions:
            return names
        try:
            report = await engine.take_kv(msgspec.structs.replace(offer, sessions=sessions), deadline_s)
        except EngineLost:
            raise
        except EarlError as error:
            log.info("engine %s takes no KV: %s", engine.spec.name, error)
            return names
        self.size_bytes += report.size_bytes
        self.rates = self.rates.read(report.size_bytes, report.seconds)
        self.moved.update({one.session: one.first + len(one.ids) for one in sessions})
        return set(report.left_out)


async def _withdraw(engine: Engine, name: str) -> None:
    with suppress(EarlError):
        await engine.withdraw_kv(name)
