"""Texts cut in the middle, so that an observation stays bounded and says what it left out.

The beginning and the end of a text are what is read first (a heading, a verdict), so the middle goes.
Lengths are in characters: the base install has no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence

# Room for the line that says what was left out.
_MARK = "\n[... {} characters left out ...]\n"
_LEAST = 64


def truncate(text: str, limit: int) -> str:
    """Cuts `text` to at most `limit` characters, at least 64: its two ends and how much is missing between.

    What cannot be sent as UTF-8 (lone surrogates) becomes "?".
    """
    limit = max(limit, _LEAST)
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    kept = limit - len(_MARK.format(len(text)))
    head = (kept + 1) // 2
    tail = kept - head
    return text[:head] + _MARK.format(len(text) - kept) + text[len(text) - tail :]


def shares(lengths: Sequence[int], total: int) -> list[int]:
    """Returns how much of each text may stay so that all fit into `total`: the longest are truncated first.

    Every text gets its length or the common bound that uses `total` up.
    """
    left, bound = total, total
    for waiting, length in zip(range(len(lengths), 0, -1), sorted(lengths), strict=True):
        bound = left // waiting
        if length > bound:
            break
        left -= length
    else:
        bound = max(lengths, default=0)
    return [min(length, bound) for length in lengths]


def truncate_all(texts: Sequence[str], each: int, total: int) -> list[str]:
    """The texts, none longer than `each` and all together no longer than `total` (or 64 a text)."""
    allowed = shares([min(len(text), each) for text in texts], total)
    return [truncate(text, limit) for text, limit in zip(texts, allowed, strict=True)]
