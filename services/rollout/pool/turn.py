"""One turn that several engines may sample, one after the other, as one Generation. Pure.

    ids ── engine A ──► tokens, "abort" ── ids + tokens ── engine B ──► tokens, "stop" ──► all tokens, "stop"

The uniform that samples a position is a function of (seed, position), so what engine B samples is what A
would have.
"""

from __future__ import annotations

import msgspec

from services.rollout.engines.contract.engine import GenerateRequest, Generation


class Turn:
    """A request and what was sampled for it so far. The first part's reused_tokens are the turn's: later
    parts find again what the first one computed."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._made: Generation | None = None

    @property
    def tokens(self) -> int:
        """Of the whole context so far."""
        return len(self._request.ids) + (len(self._made.ids) if self._made is not None else 0)

    @property
    def needs(self) -> int:
        """The longest that the context may become."""
        return len(self._request.ids) + self._request.max_new_tokens

    def rest(self) -> GenerateRequest:
        """What is still to be sampled, at least one token."""
        if self._made is None:
            return self._request
        return msgspec.structs.replace(
            self._request,
            ids=self._request.ids + self._made.ids,
            max_new_tokens=self._request.max_new_tokens - len(self._made.ids),
        )

    def add(self, part: Generation) -> Generation:
        """What an engine made of `rest`; returns the turn as it stands."""
        before = self._made
        self._made = part
        if before is not None:
            stalls_s = list(before.stalls_s)
            if before.ended_ns and part.began_ns:
                stalls_s.append((part.began_ns - before.ended_ns) / 1e9)
            self._made = msgspec.structs.replace(
                part,
                ids=before.ids + part.ids,
                logprobs=before.logprobs + part.logprobs,
                versions=before.versions + part.versions,
                reused_tokens=before.reused_tokens,
                began_ns=before.began_ns or part.began_ns,
                ended_ns=part.ended_ns or before.ended_ns,
                stalls_s=stalls_s,
            )
        return self._made
