"""The page's routes: the page, its files, the stream of sections, and the trajectories.

All of them are behind earl.dashboard.guard.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request
from fastapi import Path as InPath
from fastapi.responses import Response

from earl.cli.lib.log_lines import LineFilter, Logs
from earl.cli.report.sections.encoding import encoded
from earl.cli.report.sections.run_file import configuration
from earl.cli.report.sections.trajectories import Filters
from earl.cli.report.web_files import web_files
from earl.cli.show.ls import ListedRun, list_runs
from earl.dashboard.door import Door
from earl.dashboard.feed import Feed
from earl.dashboard.guard import PAGES, Application, Receive, RequestGuard, Scope, Send
from earl.dashboard.runs import RunFolder, ViewedRun, differences
from earl.dashboard.watch import RunWatch
from earl.errors import ConfigError
from earl.stack.run_files import LOGS
from earl.waiting import until_first

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
    """Builds the application behind the guard."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, routes=of_a_run.routes)
    app.state.folder = folder
    files = page_files()

    @app.exception_handler(ConfigError)
    async def unknown(_: Request, error: Exception) -> Response:
        return Response(f"{error}\n", 404, media_type="text/plain")

    @app.get("/")
    @app.get("/runs")
    @app.get("/compare")
    async def page(request: Request) -> Response:
        return files[PAGES[request.url.path]]

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        return files[name]

    @app.get("/api/runs")
    async def runs() -> Response:
        rows = [shown_run(run) for run in await list_runs(folder.folder)]
        return answer({"folder": folder.folder.name, "first": first, "runs": rows})

    @app.get("/api/compare")
    async def compare(run: Names) -> Response:
        views = {name: await folder.view(name) for name in run[:COMPARED]}
        return answer({"keys": differences({name: view.config for name, view in views.items()})})

    return app


# --- routes of a run ------------------------------------------------------------------------

of_a_run = APIRouter(prefix="/api/runs/{run}")


async def viewed_run(run: str, request: Request) -> ViewedRun:
    """The run that a request names. Raises ConfigError if there is none of that name."""
    return await request.app.state.folder.view(run)


View = Annotated[ViewedRun, Depends(viewed_run)]


@of_a_run.get("/stream")
async def stream(view: View, request: Request, last: Text = None) -> Response:
    if view.feed.full:
        raise HTTPException(503, "too many pages are open", {"retry-after": "30"})
    return Stream(view.feed, view.watch, request.headers.get("last-event-id") or last or "")


@of_a_run.get("/keys")
async def keys(view: View) -> Response:
    return answer({"keys": await view.metric_names()})


@of_a_run.get("/series")
async def series(view: View, key: Names, over: Text = None) -> Response:
    return answer({"series": await view.series(key[:SERIES], over or "step")})


@of_a_run.get("/busy")
async def busy(view: View) -> Response:
    return answer(await view.busy())


@of_a_run.get("/alerts")
async def alerts(view: View) -> Response:
    return answer({"rows": await view.alerts()})


@of_a_run.get("/config")
async def config(view: View) -> Response:
    return answer(await asyncio.to_thread(configuration, view.config))


@of_a_run.get("/logs")
async def logs(view: View, process: Text = None, level: Text = None, text: Text = None) -> Response:
    return answer(await asyncio.to_thread(log_lines, view.directory, process, level, text))


@of_a_run.get("/trajectories")
async def trajectories(
    view: View,
    kind: Text = None,
    ending: Text = None,
    reward: Text = None,
    first: Step = None,
    last: Step = None,
    text: Text = None,
) -> Response:
    await view.watch.begun()
    filters = Filters(kind, ending, reward, first, last, text)
    return answer(await asyncio.to_thread(view.trajectories.listing, filters))


@of_a_run.get("/trajectories/{ticket}")
async def whole(view: View, ticket: Annotated[int, InPath(ge=0, le=MOST)]) -> Response:
    await view.watch.begun()
    trajectory = view.trajectories.whole(ticket)
    if trajectory is None:
        raise HTTPException(404, f"trajectory {ticket} is not kept")
    return answer(trajectory)


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
        try:
            with suppress(TimeoutError):  # the browser is stuck
                await until_first(self._tell(events, send), wait_disconnected(receive))
        finally:
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


async def wait_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
