"""The client of a served model against a real server of the protocol: good replies, bad ones, none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from earl.errors import (
    ConfigError,
    DeadlineExceeded,
    EarlError,
    PermissionDenied,
    ServiceUnavailable,
    Unauthenticated,
    UnusableReply,
)
from earl.served import client as module
from earl.served.client import ServedModelClient, pauses_s
from earl.served.endpoint import ServedEndpoint
from tests.support.certificates import certified
from tests.support.completions_server import NAME, CompletionsServer, completions_server, expected

WORDS = [f"w{number}" for number in range(23)]
PROMPT = [1, 5, 5, 22, 0, 7]
SECRET = "a-token-that-nobody-may-read"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompletionsServer]:
    with completions_server(tmp_path_factory.mktemp("server"), WORDS) as made:
        yield made


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.0)


async def logprobs(url: str, tries: int = 3, prompt: list[int] = PROMPT, **fields: Any) -> np.ndarray:
    async with ServedModelClient(ServedEndpoint(url, **fields), tries) as client:
        return await client.prompt_logprobs(NAME, prompt)


async def test_log_probs_are_the_servers_and_the_first_token_has_none(server: CompletionsServer):
    values = await logprobs(server.url())
    assert values.dtype == np.float32 and values[0] == 0.0
    np.testing.assert_allclose(values, expected(len(WORDS), PROMPT), atol=1e-6)
    (request,) = server.requests()
    assert request == {
        "path": "/v1/completions", "model": NAME, "prompt": PROMPT, "max_tokens": 1, "temperature": 0,
        "prompt_logprobs": 0,
    }  # fmt: skip
    async with ServedModelClient(ServedEndpoint(server.url())) as client:
        (card,) = await client.cards()
        scores = await client.prompt_scores(NAME, PROMPT, 2)
    assert (card.id, card.max_model_len) == (NAME, 256)
    assert len(scores) == len(PROMPT) - 1 and {2, 3} >= {len(each) for each in scores}
    assert scores[0][5].decoded_token == "w5"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("short", "has 5 prompt_logprobs for 6 tokens"),
        ("shifted", "at position 1 it has 7, and the prompt has token 5"),
        ("none", "has no prompt_logprobs"),
        ("choices", "has 2 choices in place of 1"),
        ("nan", "not of the form"),
        ("infinite", "log-prob of token 5 at position 1 is -9999.0, not finite"),
        ("positive", "log-prob of token 5 at position 1 is 0.5, above 0"),
        ("html", "not of the form"),
        ("huge", "longer than 68,608 bytes"),
        ("zipped", "content-encoding is gzip"),
        ("moved", "answered with status 307"),
        ("absent", "answered with status 404: .*Not Found.*/v1 for vLLM"),
    ],
)
async def test_a_reply_that_is_none_is_refused_once_and_names_the_url(
    server: CompletionsServer, fault: str, reason: str
):
    with pytest.raises(UnusableReply, match=reason) as refused:
        await logprobs(server.url(fault))
    assert server.url(fault) in refused.value.message and refused.value.remedy
    assert len(server.requests(f"/{fault}/v1/completions")) == 1


async def test_what_the_server_refuses_has_its_reason(server: CompletionsServer):
    with pytest.raises(UnusableReply, match="status 400: Token id 99 is out of vocabulary"):
        await logprobs(server.url(), prompt=[1, 99])
    with pytest.raises(UnusableReply, match="the context ends at 256"):
        await logprobs(server.url(), prompt=[1] * 256)
    with pytest.raises(PermissionDenied, match="not this model"):
        await logprobs(server.url("forbidden"))


async def test_a_busy_server_is_asked_again(server: CompletionsServer, caplog: pytest.LogCaptureFixture):
    values = await logprobs(server.url("busy"))
    np.testing.assert_allclose(values, expected(len(WORDS), PROMPT), atol=1e-6)
    assert len(server.requests("/busy/v1/completions")) == 3
    assert caplog.text.count("status 503: too many requests wait; the request is repeated in 0 s") == 2
    with pytest.raises(ServiceUnavailable, match="status 503"):
        await logprobs(server.url("busy"), tries=2)


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        ("closes", ServiceUnavailable, "cannot be reached.*start the server, or correct teacher.url"),
        ("half", ServiceUnavailable, "cannot be reached"),
        ("slow", DeadlineExceeded, "did not answer within teacher.request_s = 0.2 s.*or raise"),
    ],
)
async def test_a_server_that_is_gone_or_slow_ends_after_the_last_attempt(
    server: CompletionsServer, fault: str, error: type[EarlError], reason: str
):
    with pytest.raises(error, match=reason) as failed:
        await logprobs(server.url(fault), tries=2, request_s=0.2)
    assert server.url(fault) in failed.value.message
    assert len(server.requests(f"/{fault}/v1/completions")) == 2


async def test_a_server_that_is_not_there_is_named(server: CompletionsServer):
    with pytest.raises(ServiceUnavailable, match=r"http://127\.0\.0\.1:1/v1/completions cannot be reached"):
        await logprobs("http://127.0.0.1:1/v1", tries=2)


async def test_so_many_requests_wait_at_once_and_no_more(server: CompletionsServer):
    async with ServedModelClient(ServedEndpoint(server.url("slow"), requests=2)) as client:
        waiting = [asyncio.create_task(client.prompt_logprobs(NAME, PROMPT)) for _ in range(5)]
        before = len(server.requests("/slow/v1/completions"))
        while len(server.requests("/slow/v1/completions")) < before + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert client._slots.locked() and not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert len(server.requests("/slow/v1/completions")) == before + 2


def test_pauses_double_and_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 1.0)
    assert pauses_s(7) == [1.0, 2.0, 4.0, 8.0, 16.0, 16.0] and pauses_s(1) == []


# --- tokens and TLS -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CompletionsServer, Path]]:
    """A server with TLS and a token, and the file of its authority."""
    directory = tmp_path_factory.mktemp("secured")
    tls = certified(directory / "tls")
    files = ("--certificate", str(tls.certificate), "--key", str(tls.key))
    with completions_server(directory, WORDS, "--token", SECRET, *files) as made:
        assert tls.authority is not None
        yield made, tls.authority


async def test_https_is_checked_and_the_token_is_sent(
    secured: tuple[CompletionsServer, Path], caplog: pytest.LogCaptureFixture
):
    server, authority = secured
    caplog.set_level(logging.DEBUG)
    await logprobs(server.url(), token=SECRET, authority=authority)
    with pytest.raises(ServiceUnavailable, match="SSL_CERT_FILE or EARL_TLS_CA"):
        await logprobs(server.url(), token=SECRET)
    with pytest.raises(Unauthenticated, match=r"status 401.*set EARL_TEACHER_TOKEN"):
        await logprobs(server.url(), token="another", authority=authority)
    with pytest.raises(UnusableReply, match=r"I was sent Bearer \.\.\. and do not like it") as refused:
        await logprobs(server.url("echo"), token=SECRET, authority=authority)
    assert SECRET not in f"{refused.value!r} {refused.value}"
    assert SECRET not in caplog.text
    assert SECRET not in repr(ServedEndpoint(server.url(), token=SECRET))


async def test_a_token_that_is_rotated_is_sent_from_then_on(secured: tuple[CompletionsServer, Path]):
    server, authority = secured
    tokens = iter(("old", SECRET))
    endpoint = ServedEndpoint(server.url(), token=lambda: next(tokens), authority=authority)
    async with ServedModelClient(endpoint) as client:
        with pytest.raises(Unauthenticated):
            await client.prompt_logprobs(NAME, PROMPT)
        await client.prompt_logprobs(NAME, PROMPT)


def test_an_authority_that_cannot_be_read_is_refused(tmp_path: Path):
    (tmp_path / "ca.pem").write_text("none")
    with pytest.raises(ConfigError, match=r"EARL_TLS_CA = .*ca\.pem"):
        ServedModelClient(ServedEndpoint("https://127.0.0.1:1/v1", authority=tmp_path / "ca.pem"))
