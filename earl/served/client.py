"""Requests to a server that speaks vLLM's OpenAI-compatible completions API, by token ids.

    prompt as ids, max_tokens = 1, prompt_logprobs ─► POST url/completions ─► log-probs of the prompt's tokens
       └─ a slot: `requests` at once                    ├─ gone, late, overloaded: again after a pause
                                                        └─ anything else: refused at once

Promise: an attempt ends within request_s and there are `tries` of them; a reply is read up to a bound and
checked before it is returned; no error and no line of a log has the token.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import httpx2
import numpy as np

from earl.errors import (
    DeadlineExceeded,
    EarlError,
    PermissionDenied,
    ServiceUnavailable,
    Unauthenticated,
    UnusableReply,
)
from earl.rpc.errors import bounded
from earl.served import replies
from earl.served.endpoint import TOKEN, TOKEN_FILE, ServedEndpoint
from earl.waiting import deadline

log = logging.getLogger(__name__)
# It logs every request.
logging.getLogger("httpx2").setLevel(logging.WARNING)

T = TypeVar("T")

# Attempts of a request while a run works, and the pauses between them, which double.
TRIES = 6
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 16.0
# A connection that was idle for longer may be closed by the server just as it is used again.
IDLE_S = 2.0
# Answers that another attempt may change.
PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
# The most of a server's words in an error.
EXCERPT_BYTES = 300
CARDS_BYTES = 1 << 20


def pauses_s(tries: int) -> list[float]:
    """The pauses before each attempt but the first."""
    return [min(FIRST_PAUSE_S * 2**number, LAST_PAUSE_S) for number in range(tries - 1)]


class ServedModelClient:
    """The client of one server, on the loop that enters it.

    Every request raises ServiceUnavailable (gone), DeadlineExceeded (slow), Unauthenticated, PermissionDenied
    and UnusableReply; each names the URL and a remedy.
    """

    def __init__(self, endpoint: ServedEndpoint, tries: int = TRIES) -> None:
        """Raises ConfigError for authorities that cannot be read."""
        self._endpoint, self._tries = endpoint, tries
        encrypted = endpoint.url.startswith("https:")
        self._slots = asyncio.Semaphore(endpoint.requests)
        self._http = httpx2.AsyncClient(
            verify=endpoint.tls(),
            # Proxies of the environment, but not for plain text: they would be able to read it.
            trust_env=encrypted,
            timeout=endpoint.request_s,
            limits=httpx2.Limits(max_connections=endpoint.requests, keepalive_expiry=IDLE_S),
            headers={"accept-encoding": "identity", "user-agent": "earl"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    @property
    def request_bound_s(self) -> float:
        """Seconds within which a request that has a slot has ended, with all attempts."""
        return self._tries * self._endpoint.request_s + sum(pauses_s(self._tries))

    async def cards(self) -> tuple[replies.ModelCard, ...]:
        """The models that the server has."""
        return await self._call("GET", "models", None, CARDS_BYTES, replies.model_cards)

    async def prompt_logprobs(self, model: str, tokens: Sequence[int]) -> np.ndarray:
        """float32[tokens]: the log-prob of each token given those before it, at temperature 1; 0 for the
        first."""
        return await self._completion(model, tokens, 0, lambda body: replies.prompt_logprobs(body, tokens))

    async def prompt_scores(
        self, model: str, tokens: Sequence[int], alternatives: int
    ) -> list[replies.PositionScores]:
        """The scores of each token but the first, and of the `alternatives` that are likeliest there."""
        return await self._completion(
            model, tokens, alternatives, lambda body: replies.prompt_scores(body, tokens)
        )

    async def _completion(
        self, model: str, tokens: Sequence[int], alternatives: int, decode: Callable[[bytes], T]
    ) -> T:
        body = {
            "model": model,
            "prompt": [int(token) for token in tokens],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": alternatives,
        }
        return await self._call(
            "POST", "completions", body, replies.reply_bytes(len(tokens), alternatives), decode
        )

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        most_bytes: int,
        decode: Callable[[bytes], T],
    ) -> T:
        """The decoded reply. decode: raises ValueError for what is none."""
        url = f"{self._endpoint.url}/{path}"
        async with self._slots:
            for pause_s in [*pauses_s(self._tries), None]:
                try:
                    return decode(await self._attempt(method, url, body, most_bytes))
                except ValueError as error:
                    raise UnusableReply(
                        f"{url} answered with what is no reply to the request: {bounded(str(error))}",
                        "is it a server of vLLM's completions API? restart it, or correct teacher.url",
                    ) from None
                except (ServiceUnavailable, DeadlineExceeded) as error:
                    if pause_s is None:
                        raise
                    log.warning("%s; the request is repeated in %g s", error.message, pause_s)
                await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, method: str, url: str, body: dict[str, Any] | None, most_bytes: int) -> bytes:
        late = DeadlineExceeded(
            f"{url} did not answer within teacher.request_s = {self._endpoint.request_s:g} s",
            "see whether the server is overloaded; lower teacher.requests, or raise teacher.request_s",
        )
        token = self._endpoint.bearer()
        headers = {"authorization": f"Bearer {token}"} if token else {}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["content-type"] = "application/json"
        try:
            async with (
                deadline(self._endpoint.request_s, late),
                self._http.stream(method, url, content=content, headers=headers) as response,
            ):
                data = await _read(response, most_bytes)
        except httpx2.TimeoutException:
            raise late from None
        except httpx2.TransportError as error:
            raise _unreachable(url, error) from None
        if response.status_code != 200:
            reason = replies.refusal_reason(data)
            raise refused(url, response.status_code, reason.replace(token, "...") if token else reason)
        return data


async def _read(response: httpx2.Response, most_bytes: int) -> bytes:
    """The body as it was sent. Raises ValueError for one that is longer, or compressed."""
    if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
        raise ValueError(f"its content-encoding is {encoding}, which was not offered")
    data = bytearray()
    async for part in response.aiter_raw():
        data += part
        if len(data) > most_bytes:
            raise ValueError(f"it is longer than {most_bytes:,} bytes")
    return bytes(data)


def _unreachable(url: str, error: httpx2.TransportError) -> ServiceUnavailable:
    remedy = "start the server, or correct teacher.url"
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        remedy = "name the authority of its certificate with SSL_CERT_FILE or EARL_TLS_CA"
    reason = bounded(str(error), EXCERPT_BYTES) or type(error).__name__
    return ServiceUnavailable(f"{url} cannot be reached: {reason}", remedy)


def refused(url: str, status: int, reason: str) -> EarlError:
    """The error for a status that is not 200. reason: the server's words."""
    words = f"{url} answered with status {status}"
    if reason := bounded(reason, EXCERPT_BYTES):
        words += f": {reason}"
    if status == 401:
        return Unauthenticated(words, f"set {TOKEN}, or {TOKEN_FILE}, to a token that the server accepts")
    if status == 403:
        return PermissionDenied(words, f"set {TOKEN}, or {TOKEN_FILE}, to a token that may use the model")
    if status in PASSING:
        return ServiceUnavailable(words, "see the server's log; lower teacher.requests if it is overloaded")
    if status == 404:
        return UnusableReply(words, "give teacher.url as the base of its API, with /v1 for vLLM")
    return UnusableReply(words, "see the server's log, or correct the keys of [teacher]")
