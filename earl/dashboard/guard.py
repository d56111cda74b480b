"""Checks of every request: host name, origin, cookie or token; and the headers of answers.

    Host ─► method ─► Sec-Fetch-Site ─► cookie, or a link's token at "/" ─► the application

Other requests are answered here and do not reach the application. Text that the page shows comes
from models and environments: it is sent as JSON, and the policy below allows no script but the page's own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from earl.dashboard.door import Door

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No text becomes markup: the browser refuses innerHTML and its like.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
# What a link may lead to, with the page that is there; a link's token is taken here alone.
PAGES = {"/": "index.html", "/runs": "runs.html", "/compare": "compare.html"}
CLOSED = (
    "This page opens with a link that works once. `earl dashboard RUN` prints a new one; "
    "so does the file dashboard.url in the run's directory."
)


class RequestGuard:
    """Checks each request to `application`. hosts: names that the server may be called by, without ports."""

    def __init__(self, application: Application, door: Door, hosts: frozenset[str]) -> None:
        self._application = application
        self._door = door
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # there are no others: the server closes them
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        cookie = None
        if refusal is None and not self._admitted(headers):
            cookie = self._redeemed(scope)
            refusal = None if cookie else (HTTPStatus.UNAUTHORIZED, CLOSED)

        async def answer(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = {**HEADERS, "set-cookie": cookie} if cookie else HEADERS
                added = [(name.encode(), value.encode()) for name, value in extra.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        if refusal is None:
            await self._application(scope, receive, answer)
        else:
            await refuse(answer, *refusal)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[HTTPStatus, str] | None:
        """Status and reason for a request that is refused from every sender; None for others."""
        if host_name(headers.get("host", "")) not in self._hosts:
            # A foreign name that was made to resolve to this machine must not read as this origin.
            return HTTPStatus.MISDIRECTED_REQUEST, "This server is not known by that name."
        if scope["method"] not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, "The dashboard only shows."
        site = headers.get("sec-fetch-site", "none")
        if scope["path"] not in PAGES and site not in ("same-origin", "none"):
            return HTTPStatus.FORBIDDEN, "Another site may not read this one."
        return None

    def _admitted(self, headers: dict[str, str]) -> bool:
        """Returns whether a valid cookie was sent. Cookies of pages on other ports are ignored."""
        pairs = (pair.strip().partition("=") for pair in headers.get("cookie", "").split(";"))
        return any(name == self._door.cookie_name and self._door.admits(value) for name, _, value in pairs)

    def _redeemed(self, scope: Scope) -> str | None:
        if scope["path"] not in PAGES or scope["method"] != "GET":
            return None
        try:
            query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=8)
        except ValueError:  # more fields than any link has
            return None
        return self._door.redeem(query.get("token", [""])[0])


def host_name(header: str) -> str:
    """The name in a Host header, without the port: "[::1]:80" → "::1"."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


async def refuse(send: Send, status: HTTPStatus, text: str) -> None:
    body = f"{status.value} {status.phrase}. {text}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})
