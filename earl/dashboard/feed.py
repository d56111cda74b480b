"""The sections that the page shows, and their followers.

Each section has the revision at which it changed last. A follower is sent the sections that changed since
its last event, whole: one that is slow, or comes back with Last-Event-ID, misses what was in between and
nothing else, so nothing is ever queued for it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from typing import Any

from earl.cli.report.sections.encoding import encoded
from earl.waiting import until_first

# A line is sent this often, so that both ends notice when the other is gone.
PULSE_S = 15.0
# Followers at once.
FOLLOWERS = 64
RETRY_MS = 2000


class Feed:
    """Sections by name. An event's id is "<boot>.<revision>": ids of another server are ignored."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(4)
        self._revision = 0
        self._sections: dict[str, tuple[int, bytes]] = {}
        self._news = asyncio.Event()
        self._closed = False
        self.followers = 0
        # Set while anybody follows.
        self.watched = asyncio.Event()

    @property
    def full(self) -> bool:
        return self.followers >= FOLLOWERS

    def put(self, name: str, value: Any) -> None:
        """The section is now this; a JSON-like value, NaN and infinity become null."""
        data = encoded(value)
        if name in self._sections and self._sections[name][1] == data:
            return
        self._revision += 1
        self._sections[name] = (self._revision, data)
        self._wake()

    def close(self) -> None:
        """Ends the streams of all followers."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, last_id: str) -> AsyncGenerator[bytes, None]:
        """Events as they are written on the wire, from after `last_id` on ("" or another boot's: all)."""
        self.followers += 1
        self.watched.set()
        try:
            sent = self._revision_of(last_id)
            yield b"retry: %d\n\n" % RETRY_MS
            while not self._closed:
                news = self._news
                for name, (revision, data) in sorted(self._sections.items(), key=lambda item: item[1][0]):
                    if revision > sent:
                        sent = revision
                        yield self._event(name, revision, data)
                (new,) = await until_first(news.wait(), timeout_s=PULSE_S)
                if not new:
                    yield b": still here\n\n"
        finally:
            self.followers -= 1
            if not self.followers:
                self.watched.clear()

    def _event(self, name: str, revision: int, data: bytes) -> bytes:
        return b"id: %b.%d\nevent: %b\ndata: %b\n\n" % (self._boot.encode(), revision, name.encode(), data)

    def _revision_of(self, last_id: str) -> int:
        boot, _, revision = last_id.partition(".")
        if boot != self._boot or not revision.isdecimal() or len(revision) > 18:
            return 0
        return min(int(revision), self._revision)
