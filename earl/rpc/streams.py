"""Streams that go on for hours end with the token that opened them, when it expires or is revoked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from earl.errors import Unauthenticated
from earl.rpc.tokens import AcceptedTokens, Bearer


class OpenStreams:
    """The streams of one server, each with whose token opened it."""

    def __init__(self, tokens: AcceptedTokens) -> None:
        self._tokens = tokens
        self._open: dict[asyncio.Timeout, Bearer] = {}

    @asynccontextmanager
    async def held(self, bearer: Bearer) -> AsyncIterator[None]:
        """The body is one stream. Raises Unauthenticated in it once its token is good no more."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._open[scope] = bearer
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            ended = Unauthenticated(f"the token {bearer.id} ended", "call again with one that is good")
            raise self._tokens.refusal(bearer) or ended from None
        finally:
            self._open.pop(scope, None)

    def end_refused(self) -> None:
        """Ends those whose token expired or was revoked."""
        now = asyncio.get_running_loop().time()
        for scope, bearer in self._open.items():
            if not scope.expired() and self._tokens.refusal(bearer) is not None:
                scope.reschedule(now)
