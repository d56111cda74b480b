"""Group commit: what the ledger decided is stored before anyone gets an answer.

    operation ─► ledger changes in memory ─► durable() ─┐
    operation ─► ...                      ─► durable() ─┼─► history ─► one store.apply ─► all are answered
                                                        │   (while it runs, the next round gathers)

An idle scheduler stores at once; a busy one begins a round ROUND_S after the one before at the earliest,
for a round costs as much as some tens of changes, whatever is in it.

Promise: `durable` returns only when everything decided before it was called is stored. Once a write
fails for good, every later `durable` fails too: memory is ahead of the store and must not speak.
"""

from __future__ import annotations

import asyncio
import time

from earl.errors import EarlError
from services.scheduler.journal.history_writer import HistoryWriter
from services.scheduler.journal.redis_store import LedgerStore
from services.scheduler.ledger.tables import LedgerTables

ROUND_S = 0.006


class Journal:
    """Stores the changes of one set of tables, in order. history: gets them first; None keeps none."""

    def __init__(
        self, tables: LedgerTables, store: LedgerStore, history: HistoryWriter | None = None
    ) -> None:
        self._tables = tables
        self._store = store
        self._history = history
        if history is not None:
            history.begin(store.revision)
        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._failure: EarlError | None = None

    async def durable(self) -> None:
        """Waits until all decisions so far are stored. Raises LedgerFenced, BusUnavailable."""
        if self._failure is not None:
            raise self._failure
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wake.set()
        await future

    async def run(self) -> None:
        """Stores changes until cancelled. Raises what a write failed with."""
        began = 0.0
        while True:
            await self._wake.wait()
            early_s = began + ROUND_S - time.monotonic()
            if early_s > 0:
                await asyncio.sleep(early_s)
            began = time.monotonic()
            self._wake.clear()
            waiting, self._waiting = self._waiting, []
            try:
                await self._store_once()
            except EarlError as error:
                self._failure = error
                for future in waiting + self._waiting:
                    if not future.done():
                        future.set_exception(error)
                raise
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def _store_once(self) -> None:
        if changes := self._tables.take_changes():
            if self._history is not None:
                self._history.record(self._store.revision + 1, changes.history)
            await self._store.apply(changes)

    def close(self) -> None:
        """Ends the history, once nothing more is stored."""
        if self._history is not None:
            self._history.close()
