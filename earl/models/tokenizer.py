"""Text to token ids and back, for agents: observations in, actions out.

Promise: an observation cannot smuggle in control tokens. The text of an environment is encoded with
special tokens taken as plain text; only the run file's prefixes may name them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, processors

from earl.config.model import ModelConfig
from earl.errors import ConfigError, ModelNotFound

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")


class Tokenizer:
    """One checkpoint's tokenizer with the run file's prefixes and stops.

    stop_ids: generation ends after one of these: the tokenizer's end of sequence and model.stop.
    """

    stop_ids: frozenset[int]

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, config: ModelConfig, eos_ids: tuple[int, ...]
    ) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()
        self._start = self._marked("", add_special_tokens=True)
        self._observation_prefix = self._marked(config.observation_prefix)
        self._action_prefix = self._marked(config.action_prefix)
        stops = [self._single(text) for text in config.stop]
        self.stop_ids = frozenset([*stops, *eos_ids])
        # Ends an action whose own text does not end in a stop token.
        self._end = stops[0] if stops else (eos_ids[0] if eos_ids else None)
        self._words = isinstance(tokenizer.model, models.WordLevel)
        # From here on special tokens in texts are plain text.
        tokenizer.encode_special_tokens = True

    @classmethod
    def load(cls, directory: str | Path, config: ModelConfig | None = None) -> Tokenizer:
        """Read tokenizer.json and the end-of-sequence ids. Raises ModelNotFound, ConfigError."""
        file = Path(directory) / "tokenizer.json"
        if not file.is_file():
            raise ModelNotFound(
                f"model directory {str(directory)!r} has no tokenizer.json",
                "save the tokenizer there (AutoTokenizer(...).save_pretrained)",
            )
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: BLE001  (the library raises bare Exception)
            raise ModelNotFound(f"{file} cannot be read: {error}", "save the tokenizer again") from None
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return cls(tokenizer, config or ModelConfig(), _eos_ids(Path(directory), tokenizer))

    def _marked(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def _single(self, text: str) -> int:
        token = self._tokenizer.token_to_id(text)
        if token is not None:
            return token
        ids = self._marked(text)
        if len(ids) != 1:
            raise ConfigError(
                f"model.stop: {text!r} is {len(ids)} tokens of this tokenizer, not one",
                "name a text that is a single token",
            )
        return ids[0]

    def encode_text(self, text: str) -> list[int]:
        """The ids of plain text; special tokens in it are not recognised."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_observation(self, text: str, first: bool) -> list[int]:
        """What the model reads before it acts: observation_prefix + text + action_prefix.

        first: begin with what the tokenizer puts before a sequence (its <bos>, if it has one).
        """
        start = self._start if first else []
        return [*start, *self._observation_prefix, *self.encode_text(text), *self._action_prefix]

    def encode_action(self, text: str) -> list[int]:
        """An action as the model would write it; ends in a stop token if there is one."""
        ids = self.encode_text(text)
        if self._end is not None and (not ids or ids[-1] not in self.stop_ids):
            ids.append(self._end)
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of ids without special tokens.

        A word-level tokenizer has lost the spaces: one is put between two words, none at punctuation.
        """
        if not self._words:
            return self._tokenizer.decode(ids, skip_special_tokens=True)
        tokens = [self._tokenizer.id_to_token(token) or "" for token in ids]
        text = ""
        for token in (token for token in tokens if token not in SPECIALS):
            between = re.match(r"\w", token) and re.search(r"\w$", text)
            text += f" {token}" if between else token
        return text


def _eos_ids(directory: Path, tokenizer: tokenizers.Tokenizer) -> tuple[int, ...]:
    """End-of-sequence ids of the tokenizer, generation and model configurations."""
    found: dict[int, None] = {}
    for name in ("generation_config.json", "config.json"):
        if (directory / name).is_file():
            value = json.loads((directory / name).read_text()).get("eos_token_id")
            for token in value if isinstance(value, list) else [value]:
                if token is not None:
                    found[int(token)] = None
    if (directory / "tokenizer_config.json").is_file():
        value = json.loads((directory / "tokenizer_config.json").read_text()).get("eos_token")
        text = value.get("content") if isinstance(value, dict) else value
        token = tokenizer.token_to_id(text) if text else None
        if token is not None:
            # What ends a turn of a chat model; it comes first.
            found = {token: None} | found
    return tuple(found)


def scratch_tokenizer(words: list[str]) -> tokenizers.Tokenizer:
    """A word-level tokenizer: <pad> <bos> <eos> <unk> and the given words, ids in that order.

    Text is split at white space and around every punctuation character; a sequence starts with <bos>.
    """
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys([*SPECIALS, *words]))}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(behavior="isolated")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    return tokenizer
