"""Rank 0's decisions when sessions' KV moves from engine to engine: which rows, into which slots, and what
of it is valid afterwards.

    offer: rows that takers lack ─► ranks publish them during steps ─► sessions whose rows stayed as they were
    take:  hold a slot for each session ─► ranks read into the slots' rows ─► the sessions are retained here

KV is append-only: rows of one revision of a slot (SlotTable.revision) never change, so they are copied during
the steps, and a later offer brings only what came since. Pure bookkeeping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from earl.errors import EngineBusy, WeightsIncomplete
from services.rollout.engines.contract.engine import KvOffer, KvSession
from services.rollout.engines.torch.kv_allocator import KvAllocator


@dataclass(frozen=True, slots=True)
class SlotRows:
    """Rows [first, first + count) of a slot: tokens [offset, offset + count) of an offer's tensor."""

    slot: int
    first: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class KvInTransit:
    """Sessions that are offered or taken, each with its rows in this engine and the revision of their
    slot."""

    version: int
    sessions: tuple[KvSession, ...]
    rows: tuple[SlotRows, ...]
    revisions: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(rows.count for rows in self.rows)


@dataclass(frozen=True, slots=True)
class _Known:
    """The part of a session that was offered or taken: so many tokens of one revision of a slot."""

    slot: int
    revision: int
    tokens: int


class SlotHandover:
    """Keeps account of what one engine offers and takes. name: the engine's."""

    def __init__(self, name: str, kv: KvAllocator) -> None:
        self._name, self._kv, self._table = name, kv, kv.table
        self._offered: dict[str, _Known] = {}
        self._taken: dict[str, _Known] = {}

    # --- offers --------------------------------------------------------------------------------

    def offer(self, known: Mapping[str, int], version: int) -> KvInTransit:
        """Rows of all sessions, but of each the first `known`, as far as those are what was offered before;
        none of a session of which more tokens are known than it can have."""
        table, offset = self._table, 0
        sessions: list[KvSession] = []
        rows: list[SlotRows] = []
        offered: dict[str, _Known] = {}
        for session, slot in self._kv.sessions():
            revision, stop = int(table.revision[slot]), int(table.cached[slot])
            before = self._offered.get(session)
            first = 0
            if before is not None and (before.slot, before.revision) == (slot, revision):
                first = min(known.get(session, 0), before.tokens)
                offered[session] = before
            if stop > first and known.get(session, 0) <= table.context:
                ids = table.tokens[slot, first:stop].tolist()
                fresh = bool(table.fresh[slot])
                sessions.append(KvSession(session=session, first=first, offset=offset, ids=ids, fresh=fresh))
                rows.append(SlotRows(slot, first, offset, stop - first))
                offset += stop - first
        # Sessions that have ended need not be remembered.
        self._offered = offered
        return KvInTransit(version, tuple(sessions), tuple(rows), self._revisions(rows))

    def offered(self, moving: KvInTransit) -> list[KvSession]:
        """The sessions whose rows stayed as they were until all of them had been copied."""
        kept: list[KvSession] = []
        for session, rows, revision in zip(moving.sessions, moving.rows, moving.revisions, strict=True):
            if int(self._table.revision[rows.slot]) == revision:
                kept.append(session)
                self._offered[session.session] = _Known(rows.slot, revision, rows.first + rows.count)
        return kept

    # --- takes --------------------------------------------------------------------------------

    def take(self, offer: KvOffer, version: int) -> KvInTransit:
        """Holds a slot for each session of the offer that can be taken: not those that run here, are longer
        than the context, or continue KV that this engine no longer has.

        Raises WeightsIncomplete if the offer is of another version, EngineBusy if there is no place for all.
        """
        if offer.version != version:
            raise WeightsIncomplete(
                f"engine {self._name} has version {version}, offer {offer.name} is of {offer.version}",
                "bring both engines to one version before sequences are handed over",
            )
        kv, table = self._kv, self._table
        here = dict(kv.sessions())
        sessions: list[KvSession] = []
        rows: list[SlotRows] = []
        for session in offer.sessions:
            slot, tokens = here.get(session.session), session.first + len(session.ids)
            if slot is not None and table.running[slot]:
                continue
            if tokens > table.context or (session.first and not self._continues(session, slot)):
                kv.release(session.session)
                continue
            slot = kv.hold(session.session, session.first, tokens)
            if slot is None:
                for taken in rows:
                    kv.forget(taken.slot)
                raise EngineBusy(
                    f"engine {self._name} has place for {len(rows)} of {len(offer.sessions)} sessions "
                    f"of offer {offer.name}, not for {session.session} of {tokens} tokens",
                    "release sessions, raise rollout.max_sequences or rollout.kv_tokens, or take fewer",
                )
            sessions.append(session)
            rows.append(SlotRows(slot, session.first, session.offset, len(session.ids)))
        return KvInTransit(version, tuple(sessions), tuple(rows), self._revisions(rows))

    def taken(self, moving: KvInTransit, version: int) -> list[KvSession]:
        """Ends a complete move. Returns the sessions that are kept: all but those that began again meanwhile.

        Raises WeightsIncomplete if new weights came meanwhile.
        """
        if version != moving.version:
            self.fail(moving)
            raise WeightsIncomplete(
                f"engine {self._name} went from version {moving.version} to {version} while KV arrived",
                "hand over between two versions",
            )
        kv, kept = self._kv, list[KvSession]()
        for session, rows, revision in zip(moving.sessions, moving.rows, moving.revisions, strict=True):
            if int(self._table.revision[rows.slot]) != revision:
                kv.forget(rows.slot)  # all KV was dropped meanwhile
                continue
            ids = np.array(session.ids, dtype=np.int64)
            if kv.keep(rows.slot, session.session, ids, session.fresh):
                kept.append(session)
                self._taken[session.session] = _Known(rows.slot, revision, rows.first + rows.count)
        return kept

    def fail(self, moving: KvInTransit) -> None:
        """Ends a move of which rows are missing: none of its sessions is kept."""
        for rows in moving.rows:
            self._kv.forget(rows.slot)

    def _continues(self, session: KvSession, slot: int | None) -> bool:
        """Returns whether the slot holds at least the session's first `first` tokens, as they were taken."""
        known = self._taken.get(session.session)
        if known is None or slot is None:
            return False
        same = (known.slot, known.revision) == (slot, int(self._table.revision[slot]))
        return same and known.tokens >= session.first

    def _revisions(self, rows: list[SlotRows]) -> tuple[int, ...]:
        return tuple(int(self._table.revision[part.slot]) for part in rows)
