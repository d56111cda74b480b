"""Stop texts: an answer ends with the token that completes one of them, however its tokens spell it.

    newest token ─► may it complete a text? ─► the answer's last tokens as text ─► a stop text in it: the end

Engines know token ids alone, and take the tokenizer for this only where a run has stop texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from services.rollout.engines.contract.engine import EngineSpec

# Stands for bytes that are no whole character.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# The bytes of a character, at most.
CHARACTER_BYTES = 4


class StopTexts:
    """Finds stop texts in answers. texts: none of them empty. decode: gives the text of token ids."""

    def __init__(self, texts: Sequence[str], decode: Callable[[list[int]], str]) -> None:
        self._texts, self._decode = tuple(texts), decode
        # A token adds a byte at least; what the first ones add may begin inside a character.
        self._window = max(len(text.encode()) for text in texts) + CHARACTER_BYTES
        self._last = {text[-1] for text in texts}
        # Some tokenizers leave the space out with which a text of one token begins.
        self._any_token = " " in self._last
        # By token: whether it has the last character of a stop text, or a part of a character.
        self._completes: dict[int, bool] = {}

    def end(self, answer: Sequence[int] | np.ndarray, new: int = 1) -> int | None:
        """The number of the answer's tokens [N] up to the first one that completes a stop text, among its
        last `new` tokens; None if none of them does. Earlier tokens have completed none."""
        for length in range(len(answer) - new + 1, len(answer) + 1):
            if self._may_complete(int(answer[length - 1])):
                text = self._decode([int(token) for token in answer[max(0, length - self._window) : length]])
                if any(stop in text for stop in self._texts):
                    return length
        return None

    def _may_complete(self, token: int) -> bool:
        if token not in self._completes:
            text = self._decode([token])
            self._completes[token] = self._any_token or REPLACEMENT in text or bool(self._last & {*text})
        return self._completes[token]


def stop_texts_of(spec: EngineSpec) -> StopTexts | None:
    """The stop texts of an engine's requests; None if it has none. Raises ModelNotFound if the model has no
    tokenizer."""
    if not spec.stop_texts:
        return None
    from earl.models.tokenizer import Tokenizer

    return StopTexts(spec.stop_texts, Tokenizer.load(spec.model_dir).decode)
