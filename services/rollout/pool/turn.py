"""A turn that several engines may sample, one after the other, as one Generation. Pure.

    ids ── engine A ──► tokens, "abort" ── ids + tokens ── engine B ──► tokens, "stop" ──► all tokens, "stop"

The uniform that samples a position is a function of (seed, position), so what engine B samples is what A
would have.
"""

from __future__ import annotations

import msgspec

from services.rollout.engines.contract.engine import GenerateRequest, Generation


class ResumableTurn:
    """A request and what was sampled for it so far. reused_tokens of the whole are those of the first part:
    later parts reuse what the first one computed."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._sampled: Generation | None = None

    @property
    def tokens(self) -> int:
        """Tokens of the whole context so far."""
        return len(self._request.ids) + (len(self._sampled.ids) if self._sampled is not None else 0)

    @property
    def most_tokens(self) -> int:
        """Tokens that the context may have at the end of the turn, at most."""
        return len(self._request.ids) + self._request.max_new_tokens

    def rest(self) -> GenerateRequest:
        """The request for what is still to be sampled, at least one token."""
        if self._sampled is None:
            return self._request
        return msgspec.structs.replace(
            self._request,
            ids=self._request.ids + self._sampled.ids,
            max_new_tokens=self._request.max_new_tokens - len(self._sampled.ids),
            answered=self._request.answered + len(self._sampled.ids),
        )

    def add(self, part: Generation) -> Generation:
        """Adds what an engine sampled for `rest`; returns the turn so far."""
        before = self._sampled
        self._sampled = part
        if before is not None:
            stalls_s = list(before.stalls_s)
            if before.ended_ns and part.began_ns:
                stalls_s.append((part.began_ns - before.ended_ns) / 1e9)
            self._sampled = msgspec.structs.replace(
                part,
                ids=before.ids + part.ids,
                logprobs=before.logprobs + part.logprobs,
                versions=before.versions + part.versions,
                reused_tokens=before.reused_tokens,
                began_ns=before.began_ns or part.began_ns,
                ended_ns=part.ended_ns or before.ended_ns,
                stalls_s=stalls_s,
            )
        return self._sampled
