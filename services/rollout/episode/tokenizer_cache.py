"""A cache of tokenised texts, of short ones only: games show the same boards again and again.

Promise: the same results as the tokenizer's; at most ENTRIES texts and as many actions are kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

ENTRIES = 8192
TEXT_CHARACTERS = 256
ACTION_TOKENS = 16


class EpisodeTokenizer(Protocol):
    """The part of earl.models.tokenizer.Tokenizer that the agent loop uses."""

    # The chat's system message, and how every answer in it begins; empty if there is none.
    system: str
    opening: str

    def encode_observation(
        self, text: str, first: bool, role: str = "user", after: int | None = None
    ) -> list[int]: ...

    def encode_action(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


class TokenizerCache:
    """A tokenizer in front of another one. The lists that it returns are shared: do not change them."""

    def __init__(self, tokenizer: EpisodeTokenizer) -> None:
        self._tokenizer = tokenizer
        self.system = tokenizer.system
        self.opening = tokenizer.opening
        self._observation = lru_cache(ENTRIES)(tokenizer.encode_observation)
        self._action = lru_cache(ENTRIES)(tokenizer.encode_action)
        self._text = lru_cache(ENTRIES)(lambda ids: tokenizer.decode(list(ids)))

    def encode_observation(
        self, text: str, first: bool, role: str = "user", after: int | None = None
    ) -> list[int]:
        if len(text) > TEXT_CHARACTERS:
            return self._tokenizer.encode_observation(text, first, role, after)
        return self._observation(text, first, role, after)

    def encode_action(self, text: str) -> list[int]:
        if len(text) > TEXT_CHARACTERS:
            return self._tokenizer.encode_action(text)
        return self._action(text)

    def decode(self, ids: list[int]) -> str:
        if len(ids) > ACTION_TOKENS:
            return self._tokenizer.decode(ids)
        return self._text(tuple(ids))
