"""The final answer in an agent's text, and checks of it that a task gives.

The answer is the text between the last <answer> and </answer>; without these marks, the last line that
is not empty. A task's check of it, for example {"answer": 12.5, "check": "numeric", "tolerance": 0.1}:

    exact     (the default) the same text, but for how words are spaced
    regex     `answer` is a regular expression that matches the whole of it
    numeric   the last number in it is `answer`, or no further than `tolerance` (default 0) from it

Pure: the same text always gets the same score.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

FORM = "Give your final answer between <answer> and </answer>."
CHECKS = ("exact", "regex", "numeric")
MAX_CHARACTERS = 2_000

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")

Score = Callable[[str], float]


def final(text: str) -> str:
    """The answer in a text, at most MAX_CHARACTERS of it; empty if there is none."""
    tagged = _TAGGED.findall(text)
    if tagged:
        return tagged[-1].strip()[:MAX_CHARACTERS]
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:MAX_CHARACTERS] if lines else ""


def checked(task: Mapping[str, Any]) -> Score:
    """Returns a score of the final answer, 0.0 or 1.0, as the task's answer, check and tolerance say.

    Raises ValueError for a task that says it wrongly.
    """
    kind, expected, tolerance = task.get("check", "exact"), task.get("answer"), task.get("tolerance", 0)
    if kind not in CHECKS:
        raise ValueError(f"check {kind!r} is none of {', '.join(CHECKS)}")
    if type(tolerance) not in (int, float) or not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance {tolerance!r} is no number from 0 on")
    if tolerance and kind != "numeric":
        raise ValueError(f"check {kind!r} takes no tolerance")
    if kind == "numeric":
        return _numeric(expected, float(tolerance))
    if not isinstance(expected, str) or not expected.strip():
        raise ValueError(f"answer {expected!r} of check {kind!r} is no text")
    return _regex(expected) if kind == "regex" else _exact(expected)


def _exact(expected: str) -> Score:
    words = expected.split()
    return lambda answer: float(answer.split() == words)


def _regex(expected: str) -> Score:
    try:
        pattern = re.compile(expected)
    except (re.error, RecursionError) as error:
        raise ValueError(f"answer {expected!r} is no regular expression: {error}") from None
    return lambda answer: float(pattern.fullmatch(answer) is not None)


def _numeric(expected: Any, tolerance: float) -> Score:
    try:
        value = Decimal(str(expected))
    except InvalidOperation:
        value = Decimal("nan")
    if isinstance(expected, bool) or not value.is_finite():
        raise ValueError(f"answer {expected!r} of check 'numeric' is no finite number")

    def score(answer: str) -> float:
        numbers = _NUMBER.findall(_THOUSANDS.sub("", answer))
        if not numbers:
            return 0.0
        answered = Decimal(numbers[-1])
        # Decimals compare exactly; a difference is only taken where a tolerance asks for one.
        return float(answered == value or abs(float(answered) - float(value)) <= tolerance > 0)

    return score
