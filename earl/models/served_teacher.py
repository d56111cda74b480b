"""A teacher that another server serves: checked against the run's model before it is used.

    server: models ─► its name, its longest context ─────────────┐
            completions of a probe ─► the text of each token ────┴─► <run>/teacher/served.json

The launch checks it, and so does the teacher's process before its first request: a server may have been
started again with another model. A run that is resumed with the same URL asks nothing at its launch, for the
teacher may have ended long ago.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import tokenizers

from earl.config.run import RunConfig
from earl.errors import ConfigError, ModelNotFound
from earl.served.client import ServedModelClient
from earl.served.endpoint import ServedEndpoint
from earl.served.replies import ModelCard, PositionScores

RECORD = "served.json"
# At a launch nobody waits for a server that is being started.
LAUNCH_TRIES = 3
# Tokens of the probe: all of a small vocabulary, else a selection of it; and of one request.
PROBED, PROMPT_TOKENS = 1024, 256
# The character for bytes that are no text: part of a token whose text is not known alone.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A server's model may have so many times more tokens than the tokenizer, unused ones.
PADDED = 4
SHOWN_MODELS = 8


@dataclass(frozen=True, slots=True)
class ServedTeacher:
    """A teacher that was checked. model: its name at the server."""

    url: str
    model: str


def make_served_teacher(directory: Path, config: RunConfig, model: Path) -> None:
    """Makes <run>/teacher the record of a served teacher that was checked; directory: that.

    model: the run's model. Raises ConfigError for one that cannot be this run's teacher, and as
    ServedModelClient.
    """
    if directory.is_symlink():
        raise ConfigError(
            f"{directory} is a link to another teacher",
            "give the run another name, or restore teacher.path",
        )
    teacher = config.teacher
    if (directory / RECORD).is_file():
        known = read_record(directory)
        if known.url == teacher.url and teacher.served_model in ("", known.model):
            return
    record = asyncio.run(_checked_at_launch(config, model))
    directory.mkdir(parents=True, exist_ok=True)
    scratch = directory / f".{RECORD}.new"
    scratch.write_text(json.dumps(asdict(record)) + "\n", encoding="utf-8")
    scratch.replace(directory / RECORD)


def read_record(directory: Path) -> ServedTeacher:
    """Reads what `make_served_teacher` wrote. Raises ModelNotFound."""
    try:
        fields = json.loads((directory / RECORD).read_text(encoding="utf-8"))
        return ServedTeacher(str(fields["url"]), str(fields["model"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelNotFound(
            f"{directory / RECORD} cannot be read: {error}", "start the run again, or restore the file"
        ) from None


async def _checked_at_launch(config: RunConfig, model: Path) -> ServedTeacher:
    async with ServedModelClient(ServedEndpoint.of(config.teacher), LAUNCH_TRIES) as client:
        return await check_served(client, config, model)


async def check_served(client: ServedModelClient, config: RunConfig, model: Path) -> ServedTeacher:
    """The teacher that the server has, checked: its name, context, and tokens.

    model: the directory of the run's model. Raises ConfigError for one that cannot be this run's teacher, and
    as ServedModelClient.
    """
    teacher = config.teacher
    card = _card(await client.cards(), config)
    needed = config.context_tokens + 1
    longest = card.max_model_len if card.max_model_len is not None else needed
    if longest < needed:
        raise ConfigError(
            f"{teacher.named} serves {card.id!r} with {longest} tokens of context at most, and the run's "
            f"trajectories have up to {needed - 1}, to which a request adds one",
            f"serve it with more (--max-model-len {needed}), or lower rollout.max_context_tokens",
        )
    texts = probe_texts(model)
    prompts = probe_prompts(list(texts), min(PROMPT_TOKENS, longest - 1))
    made = await asyncio.gather(*(client.prompt_scores(card.id, prompt, 1) for prompt in prompts))
    compared = 0
    for prompt, scores in zip(prompts, made, strict=True):
        compared += check_probe(teacher.named, texts, prompt, scores)
    if 2 * compared < len(texts):
        raise ConfigError(
            f"{teacher.named} tells the text of {compared} of {len(texts)} tokens, too few to know that it "
            "has the trained model's tokenizer",
            "start the server with its tokenizer (without --skip-tokenizer-init), or give teacher.path",
        )
    return ServedTeacher(teacher.url, card.id)


def _card(cards: Sequence[ModelCard], config: RunConfig) -> ModelCard:
    teacher = config.teacher
    shown = ", ".join(card.id for card in cards[:SHOWN_MODELS]) or "none"
    if not teacher.served_model:
        if len(cards) != 1:
            raise ConfigError(
                f"{teacher.named} serves {len(cards)} models: {shown}",
                "set teacher.served_model to one of them",
            )
        return cards[0]
    for card in cards:
        if card.id == teacher.served_model:
            return card
    raise ConfigError(
        f"teacher.served_model = {teacher.served_model!r} is no model of {teacher.named}, which has: {shown}",
        "name one of them",
    )


def probe_texts(model: Path) -> dict[int, str]:
    """The text of tokens by which tokenizers are told apart, by id: all of a small vocabulary; of a large one
    its special tokens, the last, and others at equal distances."""
    tokenizer = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = sorted(tokenizer.get_vocab().values())
    if len(ids) > PROBED:
        part = PROBED // 4
        added = sorted(tokenizer.get_added_tokens_decoder())[-part:]
        step = len(ids) / (PROBED - 2 * part)
        spread = [ids[int(number * step)] for number in range(PROBED - 2 * part)]
        ids = sorted({*spread, *added, *ids[-part:]})
    return {token: tokenizer.decode([token], skip_special_tokens=False) for token in ids}


def probe_prompts(ids: Sequence[int], most_tokens: int) -> list[list[int]]:
    """Prompts of most_tokens at most in which each id stands once after the first token, which has no
    log-prob."""
    step = max(1, most_tokens - 1)
    return [[ids[start], *ids[start : start + step]] for start in range(0, len(ids), step)]


def check_probe(
    named: str, texts: Mapping[int, str], prompt: Sequence[int], scores: Sequence[PositionScores]
) -> int:
    """The number of tokens whose text could be compared; each was the same.

    texts: of the trained model's tokens. scores: of each token of the prompt but the first, and of the
    likeliest there. Raises ConfigError for a token with another text, and for log-probs of no distribution.
    """
    least = -math.log(PADDED * (max(texts) + 1))
    compared = 0
    for token, alternatives in zip(prompt[1:], scores, strict=True):
        likeliest = max(score.logprob for score in alternatives.values())
        if likeliest < least:
            raise ConfigError(
                f"{named} gives the likeliest token in place of {token} the log-prob {likeliest:g}, less "
                "than that of equally likely ones",
                "start the server with --logprobs-mode raw_logprobs",
            )
        mine, other = texts[token], alternatives[token].decoded_token or ""
        if not _comparable(mine) or not _comparable(other):
            continue
        if _squeezed(mine) != _squeezed(other):
            raise ConfigError(
                f"{named} has another tokenizer than the trained model: token {token} is {other!r} there, "
                f"and {mine!r} here",
                "give a teacher with the tokenizer of the trained model",
            )
        compared += 1
    return compared


def _comparable(text: str) -> bool:
    return REPLACEMENT not in text and bool(_squeezed(text))


def _squeezed(text: str) -> str:
    """The text without white space: some tokenizers remove it at the beginning, or before punctuation."""
    return "".join(text.split())
