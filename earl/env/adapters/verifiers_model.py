"""The server of the model that verifiers asks: OpenAI's chat completions on loopback, answered by the agents.

One server per env host and class of environments, one seat per episode (verifiers_seat.py), found by the
model's name; a secret header keeps other users of the machine out. Needs aiohttp, which verifiers brings.
"""

from __future__ import annotations

import hmac
import itertools
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web  # pyright: ignore[reportMissingImports]

from earl.env.adapters.verifiers_seat import VerifiersSeat
from earl.errors import EnvProtocolError

SECRET_HEADER = "X-Earl-Seat"
SESSION_HEADER = "X-Session-ID"
MAX_BODY_BYTES = 16 << 20


class Seats:
    """The server of all seats of a host. url: what a client's base_url is; headers: what it must send."""

    def __init__(self) -> None:
        self.url = ""
        self.headers = {SECRET_HEADER: secrets.token_urlsafe(16)}
        self._numbers = itertools.count(1)
        self._taken: dict[str, VerifiersSeat] = {}

    def take(self) -> VerifiersSeat:
        """A seat for a new episode."""
        seat = VerifiersSeat(f"earl-{next(self._numbers)}")
        self._taken[seat.model] = seat
        return seat

    def free(self, seat: VerifiersSeat) -> None:
        """Gives a seat back: its episode is over."""
        self._taken.pop(seat.model, None)

    async def _completions(self, request: web.Request) -> web.Response:
        if not hmac.compare_digest(request.headers.get(SECRET_HEADER, ""), self.headers[SECRET_HEADER]):
            return _error(401, "not a host of this process")
        body = await request.json()
        seat = self._taken.get(str(body.get("model")))
        if seat is None:
            return _error(404, "its episode is over")
        try:
            message = await seat.complete(body, request.headers.get(SESSION_HEADER, ""))
        except EnvProtocolError as refusal:
            return _error(400, str(refusal))
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
        return web.json_response(
            {
                "id": f"{seat.model}-{time.monotonic_ns()}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": seat.model,
                "choices": [choice],
            }
        )


@asynccontextmanager
async def serving() -> AsyncIterator[Seats]:
    """Seats, served on a free port of loopback."""
    seats = Seats()
    application = web.Application(client_max_size=MAX_BODY_BYTES)
    application.router.add_post("/v1/chat/completions", seats._completions)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        seats.url = f"http://127.0.0.1:{port}/v1"
        yield seats
    finally:
        await runner.cleanup()


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": {"message": text, "type": "earl"}}, status=status)
