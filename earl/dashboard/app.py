"""The page's routes: the page, its files, the stream of sections, and the trajectories.

Every one of them stands behind earl.dashboard.guard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import Response

from earl.cli.report.style import palette
from earl.dashboard.door import Door
from earl.dashboard.feed import Feed, encoded
from earl.dashboard.guard import Application, Receive, RequestGuard, Scope, Send
from earl.dashboard.trajectories import Filters, Trajectories
from earl.dashboard.watch import RunWatch

# A browser that takes nothing for so long has lost its stream.
STUCK_S = 30.0
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
MOST = 1 << 62

Text = Annotated[str | None, Query(max_length=64)]
Step = Annotated[int | None, Query(ge=0, le=MOST)]


def application(
    door: Door, hosts: frozenset[str], feed: Feed, watch: RunWatch, trajectories: Trajectories
) -> Application:
    """The guarded application. hosts: names under which it may be called."""
    return RequestGuard(routes(feed, watch, trajectories), door, hosts)


def routes(feed: Feed, watch: RunWatch, trajectories: Trajectories) -> FastAPI:
    """What the guard lets through to."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    files = page_files()

    @app.get("/")
    async def page() -> Response:
        return files["index.html"]

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return files[name]

    @app.get("/api/stream")
    async def stream(request: Request, last: Text = None) -> Response:
        if feed.full:
            raise HTTPException(503, "too many pages are open", {"retry-after": "30"})
        return Stream(feed, watch, request.headers.get("last-event-id") or last or "")

    @app.get("/api/trajectories")
    async def listing(
        kind: Text = None, ending: Text = None, reward: Text = None, first: Step = None, last: Step = None
    ) -> Response:
        return answer(trajectories.listing(Filters(kind, ending, reward, first, last)))

    @app.get("/api/trajectories/{ticket}")
    async def whole(ticket: Annotated[int, Path(ge=0, le=MOST)]) -> Response:
        trajectory = trajectories.whole(ticket)
        if trajectory is None:
            raise HTTPException(404, f"trajectory {ticket} is not kept")
        return answer(trajectory)

    return app


def answer(value: Any) -> Response:
    return Response(encoded(value), media_type="application/json")


def page_files() -> dict[str, Response]:
    """The page's files by name, read once; the palette is the report's."""
    responses = {"palette.css": Response(palette(), media_type="text/css")}
    for file in resources.files("earl.dashboard").joinpath("page").iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in TYPES:
            responses[file.name] = Response(file.read_bytes(), media_type=TYPES[kind])
    return responses


class Stream(Response):
    """Server-sent events until the browser leaves, or takes nothing for STUCK_S."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed, watch: RunWatch, last_id: str) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._feed = feed
        self._watch = watch
        self._last_id = last_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        events = self._feed.follow(self._last_id)
        telling = asyncio.create_task(self._tell(events, send))
        leaving = asyncio.create_task(left(receive))
        try:
            await asyncio.wait([telling, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (telling, leaving):
                task.cancel()
            await asyncio.gather(telling, leaving, return_exceptions=True)
            await events.aclose()

    async def _tell(self, events: AsyncIterator[bytes], send: Send) -> None:
        fresh = False
        async for event in events:
            async with asyncio.timeout(STUCK_S):
                await send({"type": "http.response.body", "body": event, "more_body": True})
            if not fresh:
                fresh = True
                await self._watch.fresh()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
