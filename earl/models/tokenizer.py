"""Text to token ids and back, for agents: observations in, actions out.

Promise: an observation cannot smuggle in control tokens. The text of an environment is encoded with
special tokens taken as plain text; only the run file's prefixes and the checkpoint's chat template may
name them. Apart from that, ids are those of the whole text: content and the template's text around it are
encoded as one, from control token to control token.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, processors

from earl.config.model import ModelConfig
from earl.errors import ConfigError, ModelNotFound
from earl.models.chat import ChatFrame, ChatTemplate, read_template
from earl.models.export_record import read_record
from earl.models.spec import SPECIALS

log = logging.getLogger(__name__)

# Words outside of the vocabulary that are remembered, and named in the log.
UNKNOWN_WORDS = 100


@dataclass(frozen=True, slots=True)
class _Framed:
    """A frame in tokens: ids up to its last control token before the content, the text from there to the
    content, the text from the content to the next control token, ids from there on."""

    head: list[int]
    opening: str
    closing: str
    tail: list[int]
    strip: bool


class Tokenizer:
    """One checkpoint's tokenizer with the run file's prefixes and stops, or its chat template.

    stop_ids: generation ends after one of these: the tokenizer's end of sequence, what ends a turn of the
    chat template, and model.stop.
    """

    stop_ids: frozenset[int]
    # End-of-sequence ids of the checkpoint's files alone, in the order in which they are tried.
    checkpoint_eos_ids: tuple[int, ...]
    # Words that a word-level tokenizer was given and does not have, at most UNKNOWN_WORDS, in their order.
    unknown_words: dict[str, None]

    def __init__(
        self,
        tokenizer: tokenizers.Tokenizer,
        config: ModelConfig,
        eos_ids: tuple[int, ...],
        chat: ChatTemplate | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()
        self.checkpoint_eos_ids = eos_ids
        # A chat's system message, and how every answer begins (read, not generated); empty without a chat.
        self.system = config.system if chat else ""
        self.opening = config.action_prefix if chat else ""
        self._start = self._marked("", add_special_tokens=True)
        self._observation_prefix = self._marked(config.observation_prefix)
        self._action_prefix = self._marked(config.action_prefix)
        stops = [self._single(text) for text in config.stop]
        self._later: dict[str, _Framed] = {}
        if chat is not None:
            eos_ids = self._take_frames(chat, config.action_prefix, eos_ids)
        self._eos_ids = frozenset(eos_ids)
        self.stop_ids = frozenset([*stops, *eos_ids])
        # Ends an action whose own text does not end in a stop token.
        self._end = stops[0] if stops else (eos_ids[0] if eos_ids else None)
        self._words = isinstance(tokenizer.model, models.WordLevel)
        self._unknown_id = tokenizer.token_to_id(tokenizer.model.unk_token) if self._words else None
        self.unknown_words = {}
        # From here on special tokens in texts are plain text.
        tokenizer.encode_special_tokens = True

    @classmethod
    def load(cls, directory: str | Path, config: ModelConfig | None = None) -> Tokenizer:
        """Reads tokenizer.json and the end-of-sequence ids. Raises ModelNotFound, ConfigError."""
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
        config = config or ModelConfig()
        chat = ChatTemplate.load(directory, config.system) if config.chat else None
        return cls(tokenizer, config, _eos_ids(Path(directory), tokenizer), chat)

    def _take_frames(self, chat: ChatTemplate, prefix: str, eos_ids: tuple[int, ...]) -> tuple[int, ...]:
        """Tokenises the template's frames, `prefix` after their prompts; returns the end-of-sequence ids,
        what ends a turn first."""
        splitting = self._tokenizer.pre_tokenizer
        if isinstance(splitting, pre_tokenizers.Metaspace) and splitting.prepend_scheme == "first":
            # A space before the first word of a sequence; what is encoded here follows control tokens.
            splitting.prepend_scheme = "never"
            self._tokenizer.pre_tokenizer = splitting
        added = self._tokenizer.get_added_tokens_decoder()
        special = {token.content: number for number, token in added.items() if token.special}
        control = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)")
        self._first = self._framed(chat.first, control, prefix)
        self._later = {role: self._framed(frame, control, prefix) for role, frame in chat.later.items()}
        ends = control.match(chat.later["user"].before)
        return tuple(dict.fromkeys([special[ends[0]], *eos_ids])) if ends else eos_ids

    def _framed(self, frame: ChatFrame, control: re.Pattern[str], prefix: str) -> _Framed:
        named = [*control.finditer(frame.before)]
        start = named[-1].end() if named else 0
        after = frame.after + prefix
        match = control.search(after)
        end = match.start() if match else len(after)
        opening, closing = self._marked(frame.before[:start]), self._marked(after[end:])
        return _Framed(opening, frame.before[start:], after[:end], closing, frame.strip)

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
                "name a text that is a single token, or name this one in model.stop_texts",
            )
        return ids[0]

    def token(self, token_id: int) -> str:
        """A token as the vocabulary writes it; "" if it has none with this id."""
        return self._tokenizer.id_to_token(token_id) or ""

    def encode_text(self, text: str) -> list[int]:
        """The ids of plain text; special tokens in it are not recognised.

        A word-level tokenizer remembers words that it lacks, and logs each once.
        """
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids = encoded.ids
        if self._unknown_id is not None and self._unknown_id in ids:
            self._remember(text[slice(*encoded.offsets[i])] for i, token in enumerate(ids)
                           if token == self._unknown_id)  # fmt: skip
        return ids

    def _remember(self, words: Iterable[str]) -> None:
        for word in words:
            if word in self.unknown_words or len(self.unknown_words) == UNKNOWN_WORDS:
                continue
            self.unknown_words[word] = None
            log.warning(
                "the model reads <unk> for %r: add the word to model.scratch.words of a new run", word[:80]
            )

    def encode_observation(
        self, text: str, first: bool, role: str = "user", after: int | None = None
    ) -> list[int]:
        """Encodes the text that the model reads before it acts: observation_prefix + text + action_prefix, or
        with model.chat a message of this role ("user" or "tool") and the prompt for the model's own.

        first: begin with what the tokenizer puts before a sequence (its <bos>), or with the chat's system
        message. after: otherwise, the last token of the action before it: a chat ends the model's turn as
        its template does, unless that token has ended it already.
        """
        if self._later:
            return self._encode_message(text, None if first else role, after)
        start = self._start if first else []
        return [*start, *self._observation_prefix, *self.encode_text(text), *self._action_prefix]

    def _encode_message(self, text: str, role: str | None, after: int | None) -> list[int]:
        frame = self._first if role is None else self._later[role]
        head = frame.head
        if role is not None and head and after is not None:
            ended = head[0] == after or (head[0] in self._eos_ids and after in self._eos_ids)
            head = head[1:] if ended else head
        content = text.strip() if frame.strip else text
        return [*head, *self.encode_text(frame.opening + content + frame.closing), *frame.tail]

    def encode_action(self, text: str) -> list[int]:
        """An action as the model would write it, after `opening`; ends in a stop token if there is one."""
        ids = self.encode_text(text.removeprefix(self.opening))
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
    """End-of-sequence ids of the tokenizer, generation and model configurations.

    generation_config.json of an exported model also has what its run stopped at: earl.json tells them apart.
    """
    record = read_record(directory)
    if record is not None:
        return record.eos_token_ids
    ids: dict[int, None] = {}
    for name in ("generation_config.json", "config.json"):
        if (directory / name).is_file():
            value = json.loads((directory / name).read_text()).get("eos_token_id")
            for token in value if isinstance(value, list) else [value]:
                if token is not None:
                    ids[int(token)] = None
    if (directory / "tokenizer_config.json").is_file():
        value = json.loads((directory / "tokenizer_config.json").read_text()).get("eos_token")
        text = value.get("content") if isinstance(value, dict) else value
        token = tokenizer.token_to_id(text) if text else None
        if token is not None:
            # What ends a turn of a chat model; it comes first.
            ids = {token: None} | ids
    return tuple(ids)


def vocabulary(directory: Path) -> dict[str, int]:
    """The id of each token of a checkpoint's tokenizer, added ones included. Raises as Tokenizer.load."""
    Tokenizer.load(directory)
    return tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab()


def fingerprint(directory: Path, *, chat: bool) -> str:
    """A digest of what turns texts into ids: the vocabulary, and in a chat the checkpoint's template.

    Raises as Tokenizer.load.
    """
    template = read_template(directory)[0] if chat else ""
    content = json.dumps([sorted(vocabulary(directory).items()), template])
    return hashlib.sha256(content.encode()).hexdigest()


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
