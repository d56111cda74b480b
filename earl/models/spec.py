"""A decoder's description in a checkpoint's config.json, as one value.

Promise: a spec that exists can be built (earl.models.module) and reproduces transformers; whatever
the decoders here do not have is refused while the spec is read, with the key and its value.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from earl.config.model import ModelShape, ScratchModel
from earl.errors import ModelNotFound, UnsupportedModel

FAMILIES = ("llama", "qwen2", "qwen3")
# Positions of a model from scratch for which nobody asked for a number.
UNBOUNDED_POSITIONS = 1 << 40
# The tokens that every vocabulary made here begins with.
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding. kind "default" ignores the rest but theta; "linear" uses factor."""

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder's sizes. Example: ModelSpec("llama", 128, 2, 4, 4, 32, 384, 32)."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    eps: float = 1e-6
    # lm_head is the embedding; no lm_head.weight exists.
    tied: bool = False
    # Biases of q, k, v and of o.
    qkv_bias: bool = False
    o_bias: bool = False
    # RMS norm of every query and key head (qwen3).
    qk_norm: bool = False
    max_positions: int = 2048
    rope: Rope = Rope()

    def size_bytes(self, dtype: str) -> int:
        """Bytes of all parameters in "float32" or "bfloat16"."""
        return self.parameters * (4 if dtype == "float32" else 2)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every parameter by its transformers name, with its whole shape, in the order of computation."""
        block = self._block_shapes()
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        for layer in range(self.layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
        shapes["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        return shapes

    def _block_shapes(self) -> dict[str, tuple[int, ...]]:
        hidden, inner = self.hidden, self.intermediate
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
        for letter, rows in (("q", query), ("k", key), ("v", key)):
            shapes[f"self_attn.{letter}_proj.weight"] = (rows, hidden)
            if self.qkv_bias:
                shapes[f"self_attn.{letter}_proj.bias"] = (rows,)
        if self.qk_norm:
            shapes |= {f"self_attn.{letter}_norm.weight": (self.head_dim,) for letter in "qk"}
        shapes["self_attn.o_proj.weight"] = (hidden, query)
        if self.o_bias:
            shapes["self_attn.o_proj.bias"] = (hidden,)
        shapes["post_attention_layernorm.weight"] = (hidden,)
        return shapes | {
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(map(prod, self.shapes().values()))


def spec_of_shape(shape: ModelShape) -> ModelSpec:
    """The spec of a checkpoint of which a run file tells the sizes alone, and not its positions."""
    return ModelSpec(
        family=shape.family,
        hidden=shape.hidden_size,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_size or shape.hidden_size // shape.heads,
        intermediate=shape.intermediate_size,
        vocab=shape.vocabulary,
        tied=shape.tied,
        max_positions=UNBOUNDED_POSITIONS,
        qkv_bias=shape.family == "qwen2",
        qk_norm=shape.family == "qwen3",
    )


def spec_of_scratch(scratch: ScratchModel) -> ModelSpec:
    """The spec of the model that a run makes from random weights."""
    sizes = scratch.model_dump(
        include={"family", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads"}
    )
    vocabulary = len(dict.fromkeys([*SPECIALS, *scratch.words]))
    shape = ModelShape(**sizes, vocabulary=vocabulary, tied=True)
    positions = scratch.max_positions or UNBOUNDED_POSITIONS
    return replace(spec_of_shape(shape), max_positions=positions, rope=Rope(scratch.rope_theta))


def load_spec(path: str | Path) -> ModelSpec:
    """The spec of the checkpoint in directory `path`.

    Raises ModelNotFound (no directory, no config.json, not JSON, a key missing) and UnsupportedModel.
    """
    file = Path(path) / "config.json"
    if not file.parent.is_dir():
        raise ModelNotFound(f"model directory {str(path)!r} does not exist", "set model.path to a checkpoint")
    try:
        config = json.loads(file.read_text())
    except FileNotFoundError:
        raise ModelNotFound(
            f"model directory {str(path)!r} has no config.json",
            "set model.path to a directory saved by transformers' save_pretrained",
        ) from None
    except ValueError as error:
        raise ModelNotFound(f"{file} is not JSON: {error}", "download or save the checkpoint again") from None
    return spec_of(config, str(file))


def spec_of(config: dict[str, Any], source: str = "config.json") -> ModelSpec:
    """The spec of a transformers configuration, given as its dictionary.

    Raises ModelNotFound (a key missing) and UnsupportedModel.
    """
    family = config.get("model_type", "")
    if family not in FAMILIES:
        raise UnsupportedModel(
            f"{source}: model_type {family!r} is not supported", f"use one of {', '.join(FAMILIES)}"
        )
    for key, supported in (("hidden_act", "silu"), ("mlp_bias", False), ("use_sliding_window", False)):
        value = config.get(key, supported)
        if value != supported:
            raise UnsupportedModel(f"{source}: {key} = {value!r} is not supported", f"only {supported!r} is")
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise UnsupportedModel(
            f"{source}: layer_types has sliding windows", "only full attention is supported"
        )
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        bias = bool(config.get("attention_bias", False))
        return ModelSpec(
            family=family,
            hidden=hidden,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=int(config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            eps=float(config.get("rms_norm_eps", 1e-6)),
            # Families' defaults agree: untied unless the file names another value.
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=bias or family == "qwen2",
            o_bias=bias and family != "qwen2",
            qk_norm=family == "qwen3",
            max_positions=int(config.get("max_position_embeddings", 2048)),
            rope=_rope_of(config, source),
        )
    except KeyError as error:
        raise ModelNotFound(f"{source}: {error.args[0]} is missing", "save the checkpoint again") from None


def _rope_of(config: dict[str, Any], source: str) -> Rope:
    """transformers 5 writes rope_parameters; earlier ones rope_theta and rope_scaling."""
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise UnsupportedModel(
            f"{source}: rope type {kind!r} is not supported", "use one of default, linear, llama3"
        )
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, kind, float(scaling["factor"]))
    return Rope(
        theta,
        kind,
        factor=float(scaling["factor"]),
        low_freq_factor=float(scaling["low_freq_factor"]),
        high_freq_factor=float(scaling["high_freq_factor"]),
        original_max_positions=int(scaling["original_max_position_embeddings"]),
    )
