"""The page's routes: the page, its files, the stream of sections, and the trajectories.

Every one of them stands behind earl.dashboard.guard.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi import Path as InPath
from fastapi.responses import Response

from earl.cli.lib.log_lines import LineFilter, Logs
from earl.cli.report.sections.encoding import encoded
from earl.cli.report.sections.run_file import configuration
from earl.cli.report.sections.trajectories import Filters
from earl.cli.report.web_files import web_files
from earl.cli.show.ls import ListedRun, listed
from earl.dashboard.door import Door
from earl.dashboard.feed import Feed
from earl.dashboard.guard import Application, Receive, RequestGuard, Scope, Send
from earl.dashboard.runs import RunFolder, differences
from earl.dashboard.watch import RunWatch
from earl.errors import ConfigError
from earl.stack.run_files import LOGS

# A browser that takes nothing for so long has lost its stream.
STUCK_S = 30.0
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
MOST = 1 << 62

# Curves, runs and log lines of one answer, at most.
SERIES, COMPARED, LOG_LINES = 32, 8, 500

Text = Annotated[str | None, Query(max_length=64)]
Names = Annotated[list[str], Query(max_length=64)]
Step = Annotated[int | None, Query(ge=0, le=MOST)]


def application(door: Door, hosts: frozenset[str], folder: RunFolder, first: str) -> Application:
    """The guarded application. hosts: names under which it may be called; first: the run that "/" shows."""
    return RequestGuard(routes(folder, first), door, hosts)


def routes(folder: RunFolder, first: str) -> FastAPI:
    """What the guard lets through to."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    files = page_files()

    @app.exception_handler(ConfigError)
    async def unknown(_: Request, error: Exception) -> Response:
        return Response(f"{error}\n", 404, media_type="text/plain")

    @app.get("/")
    async def page() -> Response:
        return files["index.html"]

    @app.get("/runs")
    async def list_page() -> Response:
        return files["runs.html"]

    @app.get("/compare")
    async def compare_page() -> Response:
        return files["compare.html"]

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return files[name]

    @app.get("/api/runs")
    async def runs() -> Response:
        rows = [shown_run(run) for run in await listed(folder.folder)]
        return answer({"folder": folder.folder.name, "first": first, "runs": rows})

    @app.get("/api/compare")
    async def compare(run: Names) -> Response:
        views = {name: await folder.view(name) for name in run[:COMPARED]}
        return answer({"keys": differences({name: view.config for name, view in views.items()})})

    @app.get("/api/runs/{run}/stream")
    async def stream(run: str, request: Request, last: Text = None) -> Response:
        view = await folder.view(run)
        if view.feed.full:
            raise HTTPException(503, "too many pages are open", {"retry-after": "30"})
        return Stream(view.feed, view.watch, request.headers.get("last-event-id") or last or "")

    @app.get("/api/runs/{run}/keys")
    async def keys(run: str) -> Response:
        return answer({"keys": await (await folder.view(run)).metric_names()})

    @app.get("/api/runs/{run}/series")
    async def series(run: str, key: Names, over: Text = None) -> Response:
        view = await folder.view(run)
        return answer({"series": await view.series(key[:SERIES], over or "step")})

    @app.get("/api/runs/{run}/busy")
    async def busy(run: str) -> Response:
        return answer(await (await folder.view(run)).busy())

    @app.get("/api/runs/{run}/alerts")
    async def alerts(run: str) -> Response:
        return answer({"rows": await (await folder.view(run)).alerts()})

    @app.get("/api/runs/{run}/config")
    async def config(run: str) -> Response:
        view = await folder.view(run)
        return answer(await asyncio.to_thread(configuration, view.config))

    @app.get("/api/runs/{run}/logs")
    async def logs(run: str, process: Text = None, level: Text = None, text: Text = None) -> Response:
        view = await folder.view(run)
        return answer(await asyncio.to_thread(log_lines, view.directory, process, level, text))

    @app.get("/api/runs/{run}/trajectories")
    async def listing(
        run: str,
        kind: Text = None,
        ending: Text = None,
        reward: Text = None,
        first: Step = None,
        last: Step = None,
        text: Text = None,
    ) -> Response:
        filters = Filters(kind, ending, reward, first, last, text)
        view = await folder.view(run)
        await view.watch.begun()
        return answer(await asyncio.to_thread(view.trajectories.listing, filters))

    @app.get("/api/runs/{run}/trajectories/{ticket}")
    async def whole(run: str, ticket: Annotated[int, InPath(ge=0, le=MOST)]) -> Response:
        view = await folder.view(run)
        await view.watch.begun()
        trajectory = view.trajectories.whole(ticket)
        if trajectory is None:
            raise HTTPException(404, f"trajectory {ticket} is not kept")
        return answer(trajectory)

    return app


def shown_run(run: ListedRun) -> dict[str, Any]:
    """A line of the list. age_s: seconds since it was started; None if that is unknown."""
    shown = asdict(run)
    started_s = shown.pop("started_s")
    age_s = time.time() - started_s if started_s else None
    return {**shown, "age_s": age_s, "folder": Path(run.directory).name}


def log_lines(directory: Path, process: str | None, level: str | None, text: str | None) -> dict[str, Any]:
    """The last lines of the run's logs that the filters take, and the names of all processes."""
    names = sorted(file.stem for file in (directory / LOGS).glob("*.log"))
    severity = logging.getLevelNamesMapping().get((level or "").upper(), logging.NOTSET)
    chosen = [process] if process in names else names
    lines = Logs(directory / LOGS, chosen, LineFilter(severity, 0.0)).lines()
    rows: deque[dict[str, Any]] = deque(maxlen=LOG_LINES)
    for line in lines:
        words = line.words()
        if text is None or any(text.lower() in word.lower() for word in words):
            # Milliseconds: whole numbers are sent as they are, others are rounded.
            shown = {"process": line.process, "level": line.level, "words": words}
            rows.append({"time_ms": round(line.time_s * 1000), **shown})
    return {"processes": names, "rows": list(rows)}


def answer(value: Any) -> Response:
    return Response(encoded(value), media_type="application/json")


def page_files() -> dict[str, Response]:
    """The page's files by name, read once."""
    return {
        name: Response(content, media_type=TYPES[name.rpartition(".")[2]])
        for name, content in web_files().items()
    }


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
