"""Checks the model of a run file: that it is there, and that its heads divide.

No torch here: a checkpoint is judged by its config.json.
"""

from __future__ import annotations

import json
from pathlib import Path

from earl.config.model import ModelConfig, ScratchModel
from earl.config.packaged import gguf_file, packaged
from earl.config.run import RunConfig
from earl.errors import ConfigError, IllegalParallelism, ModelNotFound
from earl.parallelism import divisors

# Characters of a stop text: as much of an answer is decoded for each of its tokens that may complete it.
LONGEST_STOP_TEXT = 256


def check_model(config: RunConfig, *, elsewhere: bool = False) -> None:
    """Raises an error unless the checkpoint exists, tp divides its heads, and its framing keys agree.

    elsewhere: model.shape stands for a checkpoint that is not here.
    """
    check_framing(config.model)
    if not config.model.path:
        check_scratch(config.model.scratch)
    check_heads(config, *model_heads(config, elsewhere=elsewhere))


def model_heads(config: RunConfig, *, elsewhere: bool = False) -> tuple[int, int, str]:
    """(attention heads, key-value heads, the model in words). Raises ModelNotFound."""
    path, shape = config.model.path, config.model.shape
    if not path:
        return config.model.scratch.heads, config.model.scratch.kv_heads, "model.scratch"
    is_here = packaged(path) is not None or Path(path).expanduser().is_dir()
    if elsewhere and shape is not None and not is_here:
        return shape.heads, shape.kv_heads, "model.shape"
    if not is_here:
        raise ModelNotFound(
            f"model.path = {path!r} is not a directory",
            "give a local transformers checkpoint directory, or remove the key to train a model from scratch",
        )
    return *checkpoint_heads("model.path", path), path


def checkpoint_heads(key: str, path: str) -> tuple[int, int]:
    """(attention heads, key-value heads) of the checkpoint that a key names. Raises ModelNotFound."""
    model = packaged(path)
    if model is not None:
        gguf_file(model)
        return model.heads, model.kv_heads
    directory = Path(path).expanduser()
    if not (directory / "config.json").is_file():
        raise ModelNotFound(f"{key} = {path!r} has no config.json", "give a complete checkpoint")
    try:
        written = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        heads = int(written["num_attention_heads"])
        return heads, int(written.get("num_key_value_heads") or heads)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFound(
            f"{key} = {path!r}: config.json names no attention heads ({error})",
            "give a Llama or Qwen checkpoint",
        ) from None


def check_scratch(scratch: ScratchModel) -> None:
    """Raises ConfigError unless a model from scratch has heads of an even size, a multiple of kv_heads."""
    if scratch.hidden_size % (2 * scratch.heads):
        raise ConfigError(
            f"model.scratch.hidden_size = {scratch.hidden_size} does not give "
            f"{scratch.heads} heads an even size",
            f"give a multiple of {2 * scratch.heads}",
        )
    if scratch.heads % scratch.kv_heads:
        raise ConfigError(
            f"model.scratch.heads = {scratch.heads} is no multiple of kv_heads = {scratch.kv_heads}",
            "give a kv_heads that divides heads",
        )


def check_framing(model: ModelConfig) -> None:
    """Raises ConfigError for prefixes and chat settings that contradict each other, and for stop texts that
    cannot be."""
    if model.chat and model.observation_prefix:
        raise ConfigError(
            f"model.observation_prefix = {model.observation_prefix!r} with model.chat = true: the chat "
            "template comes before observations",
            "put it into model.system, or remove the one or the other",
        )
    if model.chat and not model.path:
        raise ConfigError(
            "model.chat = true without model.path: a model from scratch has no chat template",
            "give an instruction-tuned checkpoint, or remove model.chat",
        )
    for text in model.stop_texts:
        if not 0 < len(text) <= LONGEST_STOP_TEXT:
            raise ConfigError(
                f"model.stop_texts has a text of {len(text)} characters: {text[:40]!r}",
                f"give texts of 1 to {LONGEST_STOP_TEXT} characters",
            )
    if model.system and not model.chat:
        raise ConfigError(
            f"model.system = {model.system[:40]!r} without model.chat = true would be used nowhere",
            "set model.chat = true, or remove model.system",
        )


def check_heads(config: RunConfig, heads: int, kv_heads: int, what: str) -> None:
    """Raises IllegalParallelism for a stage whose tp or cp does not divide these, or the trainer's ranks."""
    legal = divisors(heads, kv_heads)
    degrees = {
        "rollout.tp": config.rollout.tp,
        "reference.tp": config.reference.tp,
        "trainer.tp": config.trainer.tp,
    }
    for key, tp in degrees.items():
        if tp not in legal:
            raise IllegalParallelism(
                f"{key} = {tp} does not divide {what}'s {heads} heads and {kv_heads} key-value heads",
                f"use one of {', '.join(map(str, legal))}",
            )
    tp, cp = config.trainer.tp, config.trainer.cp
    heads, kv_heads = heads // tp, max(1, kv_heads // tp)
    legal = divisors(heads, kv_heads)
    if cp not in legal:
        raise IllegalParallelism(
            f"trainer.cp = {cp} does not divide the {heads} heads and {kv_heads} key-value heads that "
            f"trainer.tp = {tp} leaves a rank of {what}",
            f"use one of {', '.join(map(str, legal))}, or another trainer.tp",
        )
