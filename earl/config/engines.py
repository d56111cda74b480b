"""Settings of a run file that the engines of other projects support. No engine is imported."""

from __future__ import annotations

from earl.config.run import RunConfig
from earl.errors import ConfigError, UnsupportedModel

# Head sizes of vLLM's CPU attention (vllm/v1/attention/backends/cpu_attn.py, 0.32).
VLLM_CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def check_engine(config: RunConfig) -> None:
    """Raises ConfigError or UnsupportedModel for a contradiction between the engine and other keys."""
    rollout, scratch = config.rollout, config.model.scratch
    if rollout.drafts and rollout.engine == "sglang":
        raise ConfigError(
            f'rollout.drafts = {rollout.drafts} with rollout.engine = "sglang": it was not shown to sample '
            "the same tokens with drafts",
            'set rollout.engine = "torch" or "vllm", or remove rollout.drafts',
        )
    if rollout.engine == "sglang" and rollout.device == "cpu":
        raise ConfigError(
            'rollout.engine = "sglang" with rollout.device = "cpu": SGLang has no supported CPU install',
            'use rollout.device = "cuda", or rollout.engine = "torch" or "vllm"',
        )
    if rollout.engine == "sglang" and config.model.stop_texts:
        raise ConfigError(
            f'model.stop_texts = {config.model.stop_texts} with rollout.engine = "sglang": its answers end '
            "at tokens alone",
            'use rollout.engine = "torch" or "vllm", or name tokens in model.stop',
        )
    if rollout.engine == "sglang" and config.evaluation.filters:
        name, value = next(iter(config.evaluation.filters.active.items()))
        raise ConfigError(
            f'evaluation.{name} = {value:g} with rollout.engine = "sglang": its log-probs are not over the '
            "tokens that a filter keeps",
            'use rollout.engine = "torch" or "vllm", or remove the key',
        )
    if rollout.engine == "vllm" and rollout.device == "cpu" and not config.model.path:
        check_vllm_heads(scratch.hidden_size // scratch.heads, "model.scratch")


def check_vllm_heads(size: int, model: str) -> None:
    """Raises UnsupportedModel if vLLM has no CPU attention for heads of this size."""
    if size not in VLLM_CPU_HEAD_SIZES:
        raise UnsupportedModel(
            f"{model} has heads of size {size}, for which vLLM has no attention on CPUs",
            f'use one of {", ".join(map(str, VLLM_CPU_HEAD_SIZES))}, or rollout.engine = "torch"',
        )
