"""Makes a run's model directory, and those of its teacher and reward model.

From model.path: the checkpoint (a package's is converted once, see earl.models.source) is checked and
linked to, never copied. From model.scratch: random weights (seeded) and a word-level tokenizer, in a
directory that transformers reads. Doing it again changes nothing, so that a resumed run finds the
model it had.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from earl.config.context_bound import UNKNOWN_TOKENS
from earl.config.model import ModelConfig, ScratchModel
from earl.config.model_check import check_scratch
from earl.config.run import RunConfig
from earl.errors import ConfigError
from earl.models.module import Decoder, initialise
from earl.models.partial import partial_path
from earl.models.scorer import check_scorer
from earl.models.source import resolve
from earl.models.spec import SPECIALS, load_spec, spec_of
from earl.models.tokenizer import Tokenizer, fingerprint, scratch_tokenizer, vocabulary
from earl.models.weights import check_model
from earl.recorded_episodes import IMITATED, read_episodes

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def create_model(directory: Path, config: ModelConfig, seed: int, context_tokens: int = 0) -> Path:
    """Makes `directory` the run's model; returns it.

    context_tokens: positions of a model from scratch for which none are given. Raises ModelNotFound,
    UnsupportedModel, ConfigError.
    """
    if config.path:
        source = resolve(config.path)
        check_model(source)
        Tokenizer.load(source, config)
        return _linked(directory, source)
    if not directory.exists():
        positions = config.scratch.max_positions or max(UNKNOWN_TOKENS, context_tokens)
        scratch = config.scratch.model_copy(update={"max_positions": positions})
        write_scratch(directory, scratch, seed, config.weight_dtype)
    check_model(directory)
    Tokenizer.load(directory, config)
    return directory


def _linked(directory: Path, source: Path) -> Path:
    """Makes `directory` a link to a checkpoint that was checked. Raises ConfigError if it is another's."""
    if directory.is_symlink() and directory.resolve() == source:
        return directory
    if directory.is_symlink() or directory.exists():
        raise ConfigError(
            f"{directory} exists and is not {source}",
            "give the run another name, or remove its directory",
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.symlink_to(source, target_is_directory=True)
    return directory


def create_models(directory: Path, config: RunConfig) -> None:
    """Makes <directory>/model, and /teacher and /reward_model beside it if the run has them.

    Raises as `create_model` and `make_served_teacher`, and ConfigError for a teacher, a reward model or
    recorded episodes with another tokenizer.
    """
    model = create_model(directory / "model", config.model, config.seed, config.context_tokens)
    if config.teacher.url:
        # No other run needs an HTTP client.
        from earl.models.served_teacher import make_served_teacher

        make_served_teacher(directory / "teacher", config, model)
    elif path := config.teacher.path:
        teacher = create_model(directory / "teacher", ModelConfig(path=path), config.seed)
        check_same_tokens(config, model, "teacher", path, teacher)
    if path := config.reward_model.path:
        source = resolve(path)
        check_scorer(source)
        Tokenizer.load(source, ModelConfig(path=path))
        check_same_tokens(config, model, "reward_model", path, source)
        _linked(directory / "reward_model", source)
    if config.warmup.episodes:
        check_recorded_tokens(config, model, directory)


def check_same_tokens(config: RunConfig, model: Path, role: str, path: str, directory: Path) -> None:
    """Raises ConfigError unless a token id means the same to a run's model and to that of a role.

    path: as the run file names it. directory: where it is.
    """
    trained = f"model.path = {config.model.path!r}" if config.model.path else "the model from model.scratch"
    named = f"{role}.path = {path!r}"
    mine, other = (vocabulary(place) for place in (model, directory))
    if mine != other:
        differing = sorted(
            token for token in mine.keys() | other.keys() if mine.get(token) != other.get(token)
        )
        raise ConfigError(
            f"{named} has another tokenizer than {trained}: {len(other)} tokens and {len(mine)}, of which "
            f"{len(differing)} have different ids, such as {differing[0]!r}",
            f"give a {role} with the tokenizer of the trained model",
        )
    if load_spec(directory).vocab <= max(mine.values(), default=0):
        raise ConfigError(
            f"{named} has embeddings for {load_spec(directory).vocab} tokens, and the tokenizer that it "
            f"shares with {trained} has ids up to {max(mine.values())}",
            f"give a {role} that knows all tokens",
        )


def check_recorded_tokens(config: RunConfig, model: Path, directory: Path) -> None:
    """Raises ConfigError unless the tokens of the recorded episodes that the run imitates are its model's."""
    kept = directory / IMITATED
    path = kept if kept.is_file() else Path(config.warmup.episodes).expanduser()
    recorded = read_episodes(path).header
    if recorded.tokenizer != fingerprint(model, chat=config.model.chat):
        raise ConfigError(
            f"warmup.episodes = {config.warmup.episodes!r} has token ids of another tokenizer, or chat "
            f"template, than the run's model: {recorded.policy} played them",
            "record episodes of a model with the tokenizer of the trained one",
        )


def write_scratch(directory: Path, scratch: ScratchModel, seed: int, dtype: str) -> None:
    """Writes a checkpoint with random weights; the directory appears whole. Raises ConfigError."""
    check_scratch(scratch)
    tokenizer = scratch_tokenizer(scratch.words)
    config = _config(scratch, tokenizer.get_vocab_size(), dtype)
    decoder = Decoder(spec_of(config))
    initialise(decoder, seed, scratch.embedding_std)
    weights = {name: tensor.to(getattr(torch, dtype)) for name, tensor in decoder.state_dict().items()}
    partial = partial_path(directory, os.getpid())
    partial.mkdir(parents=True)
    try:
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        tokenizer.save(str(partial / "tokenizer.json"))
        for name, value in (("config.json", config), ("tokenizer_config.json", _tokenizer_config())):
            (partial / name).write_text(json.dumps(value, indent=2) + "\n")
        os.rename(partial, directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _config(scratch: ScratchModel, vocabulary: int, dtype: str) -> dict:
    config = {
        "architectures": [_ARCHITECTURES[scratch.family]],
        "model_type": scratch.family,
        "vocab_size": vocabulary,
        "hidden_size": scratch.hidden_size,
        "intermediate_size": scratch.intermediate_size,
        "num_hidden_layers": scratch.layers,
        "num_attention_heads": scratch.heads,
        "num_key_value_heads": scratch.kv_heads,
        "head_dim": scratch.hidden_size // scratch.heads,
        "hidden_act": "silu",
        "max_position_embeddings": scratch.max_positions or UNKNOWN_TOKENS,
        "rms_norm_eps": 1e-6,
        "initializer_range": scratch.embedding_std,
        "rope_parameters": {"rope_type": "default", "rope_theta": scratch.rope_theta},
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        "dtype": dtype,
    }
    return config | {
        f"{name.strip('<>')}_token_id": SPECIALS.index(name) for name in ("<pad>", "<bos>", "<eos>")
    }


def _tokenizer_config() -> dict:
    tokens = {f"{name.strip('<>')}_token": name for name in SPECIALS}
    return {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
