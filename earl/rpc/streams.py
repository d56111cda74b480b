"""Ends long streams when the token that opened them expires or is revoked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from earl.errors import Unauthenticated
from earl.rpc.tokens import AcceptedTokens, Bearer


class OpenStreams:
    """The open streams of one server, each with the bearer of the token that opened it."""

    def __init__(self, tokens: AcceptedTokens) -> None:
        self._tokens = tokens
        self._open: dict[asyncio.Timeout, Bearer] = {}

    @asynccontextmanager
    async def held(self, bearer: Bearer) -> AsyncIterator[None]:
        """The body is one stream. Raises Unauthenticated in it once its token is no longer accepted."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._open[scope] = bearer
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            ended = Unauthenticated(f"the token {bearer.id} ended", "call again with a valid one")
            raise self._tokens.refusal(bearer) or ended from None
        finally:
            self._open.pop(scope, None)

    def end_refused(self) -> None:
        """Ends the streams whose tokens have expired or were revoked."""
        now = asyncio.get_running_loop().time()
        for scope, bearer in self._open.items():
            if not scope.expired() and self._tokens.refusal(bearer) is not None:
                scope.reschedule(now)
