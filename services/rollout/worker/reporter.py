"""Reports finished attempts to the scheduler, in batches.

    add ──► queue ──(WINDOW_S)──► columns into the arena ─► one descriptor round trip ─► one
                       ▲                   │                  CompleteTickets ─► not accepted: regions freed
                       └── arena full: ◄───┘
                           wait for BatchCommitted

Promises: an attempt is reported only after its columns can be read; the seats of a match are reported in
one call; what the scheduler does not
accept leaves no region behind; a full arena holds reports back (and, through `blocked`, leasing), never
drops them, until the attempt's own time bound has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable

from earl.dispatch.publish.sequence_store import SequenceStore
from earl.env.base import Ending
from earl.errors import ArenaFull
from services.rollout.episode import columns
from services.rollout.worker.ticket import EpisodeOutcome, EpisodeTicket
from services.rollout.worker.ticket_client import AttemptReport, TicketClient

log = logging.getLogger(__name__)

# Everything that finishes within this time is reported together.
WINDOW_S = 0.015
MOST = 512
# Tokens of recorded episodes after which a report takes no more of them: it is one message.
RECORDED_TOKENS = 1 << 20
# An arena that is full for this long is logged.
FULL_S = 5.0


class Reporter:
    """Publishes and reports attempts. reported: called with each ticket once the scheduler has answered for
    it."""

    def __init__(
        self, store: SequenceStore, tickets: TicketClient, reported: Callable[[EpisodeTicket], None]
    ) -> None:
        self._store = store
        self._tickets = tickets
        self._reported = reported
        # (ticket, outcome, loop time after which it no longer waits for the arena)
        self._queue: deque[tuple[EpisodeTicket, EpisodeOutcome, float]] = deque()
        self._wake = asyncio.Event()
        # Names of columns that readers may know: from just before their report until they are freed.
        self.published: set[str] = set()
        # The arena is too full for what is queued.
        self.blocked = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, ticket: EpisodeTicket, outcome: EpisodeOutcome) -> None:
        gives_up_s = asyncio.get_running_loop().time() + ticket.episode_s
        self._queue.append((ticket, outcome, gives_up_s))
        if not self.blocked or not _needs_arena(ticket, outcome):
            self._wake.set()

    async def free(self, keys: Iterable[str]) -> None:
        """Frees the regions of trajectories that were consumed. Keys of other workers are ignored."""
        await self._free([name for key in keys if (name := self._store.name_of(key)) in self.published])

    async def free_all(self) -> None:
        """Frees everything that this worker published: nobody reads it any more."""
        await self._free(list(self.published))

    async def _free(self, names: list[str]) -> None:
        if names:
            self.published.difference_update(names)
            await self._store.remove(names)
            self._wake.set()

    async def run(self) -> None:
        """Reports until it is cancelled. Raises what the registry and the scheduler raise."""
        loop = asyncio.get_running_loop()
        while True:
            wait_s = self._queue[0][2] - loop.time() if self.blocked and self._queue else None
            with contextlib.suppress(TimeoutError):  # the oldest one has waited for the arena long enough
                async with asyncio.timeout(wait_s):
                    await self._wait_for_work()
            await asyncio.sleep(WINDOW_S)
            self._wake.clear()
            await self._report(loop.time())
            if self._queue and not self.blocked:
                self._wake.set()

    async def _wait_for_work(self) -> None:
        """Returns at the next wake-up; logs a warning if the arena stays full meanwhile."""
        if self.blocked:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FULL_S):
                    await self._wake.wait()
                    return
            arena = self._store.arena
            log.warning(
                "the arena has been full for %g s: %d of %d bytes free, %d finished episodes wait; "
                "raise rollout.arena_bytes if no batch is ever committed",
                FULL_S,
                arena.free_bytes,
                arena.capacity_bytes,
                len(self._queue),
            )
        await self._wake.wait()

    async def _report(self, now_s: float) -> None:
        reports, names = self._stage(now_s)
        if not reports:
            return
        await self._store.publish(names)
        # Before the call: a batch may be committed, or the worker forgotten, before its answer is here.
        # If the call fails, the scheduler may nevertheless have accepted them, so they stay.
        self.published.update(names)
        rejected = []
        for ticket, reason in await self._tickets.complete(reports):
            log.info("attempt %d of ticket %d was not accepted: %s", ticket.attempt, ticket.ticket_id, reason)
            rejected.append(columns.attempt_name(ticket.ticket_id, ticket.attempt))
        await self._free([name for name in rejected if name in self.published])
        for report in reports:
            self._reported(report.ticket)

    def _stage(self, now_s: float) -> tuple[list[AttemptReport], list[str]]:
        """Takes up to MOST attempts off the queue and writes their columns; those that do not fit stay.

        Those of a match are taken together. Returns the reports, and the names of the columns that are to be
        published.
        """
        reports: list[AttemptReport] = []
        names: list[str] = []
        waiting: list[tuple[EpisodeTicket, EpisodeOutcome, float]] = []
        self.blocked = False
        recorded = 0
        while self._queue and len(reports) < MOST and recorded < RECORDED_TOKENS:
            ticket, outcome, gives_up_s = self._queue.popleft()
            recorded += len(outcome.columns) if ticket.record else 0
            written: list[str] = []
            if _needs_arena(ticket, outcome):
                if not self.blocked:
                    written = self._write(ticket, outcome)
                    self.blocked = not written
                if not written:
                    if now_s < gives_up_s:
                        waiting.append((ticket, outcome, gives_up_s))
                        continue
                    for seat in outcome.seats:
                        seat.ending = Ending.INFRA_ERROR
                        seat.message = "arena full; raise rollout.arena_bytes or train sooner"
            names += written
            keys = [self._store.key_of(name) for name in written] or [""] * len(ticket.seats)
            reports += map(AttemptReport, ticket.seats, outcome.seats, keys)
        self._queue.extendleft(reversed(waiting))
        return reports, names

    def _write(self, ticket: EpisodeTicket, outcome: EpisodeOutcome) -> list[str]:
        """Writes the columns of all seats into the arena; returns their names, none unless all fit."""
        names: list[str] = []
        for seat, played in zip(ticket.seats, outcome.seats, strict=True):
            name = columns.attempt_name(seat.ticket_id, seat.attempt)
            try:
                played.columns.write(self._store.reserve(name, len(played.columns)))
            except ArenaFull:
                self._store.cancel(names)
                return []
            names.append(name)
        return names


def _needs_arena(ticket: EpisodeTicket, outcome: EpisodeOutcome) -> bool:
    return ticket.publish and outcome.trainable
