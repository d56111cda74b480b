"""Starts vLLM's engine core in this process, set up for EARL: token ids only, one step at a time.

vLLM 0.32's EngineCore is its scheduler and executor without tokenizer, HTTP or queues. With tp 1 the
model runs in this process too; with more, vLLM starts one worker process a rank. What is set here:
prefix caching in blocks of BLOCK_TOKENS, chunked prefill, no asynchronous scheduling (a step's tokens
are of one version), the KV cache's size from the spec, log-probs of the sampled token only.
"""

from __future__ import annotations

import os
from typing import Any

from earl.config.engines import check_vllm_heads
from earl.errors import EngineError
from earl.models.spec import ModelSpec
from earl.models.tp import rank_heads
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.drafts.policy import MOST_DRAFTED
from services.rollout.engines.foreign.engine import (
    check_device,
    narrow_visible_gpus,
    refuse_deterministic,
)

# Tokens of a KV block: the least that vLLM's CPU attention takes.
BLOCK_TOKENS = 32
# Tokens of one step by device, where the spec gives none.
STEP_TOKENS = {"cpu": 1024, "cuda": 8192}
WORKER = "services.rollout.engines.vllm.worker.EarlWorker"
DRAFTER = "services.rollout.engines.vllm.drafts.RequestDrafter"


def prepare_environment(spec: EngineSpec) -> None:
    """Sets the environment variables that vLLM reads, before its first import; keeps those already set."""
    values = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        # Cores are the operator's to give: engines and trainer share them.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_PLUGINS": "",
        "HF_HUB_OFFLINE": "1",
    }
    for name, value in values.items():
        os.environ.setdefault(name, value)
    # An unset VLLM_CPU_KVCACHE_SPACE leaves the size to kv_cache_memory_bytes.
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
    narrow_visible_gpus(spec)


def device_of(spec: EngineSpec) -> str:
    """ "cpu" or "cuda": what this build of vLLM runs on. Raises EngineError if the spec wants another."""
    from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

    have = "cpu" if current_platform.is_cpu() else "cuda" if current_platform.is_cuda() else "other"
    check_device(spec, have, "vLLM")
    return have


def check_model(spec: EngineSpec, model: ModelSpec, device: str) -> None:
    """Raises UnsupportedModel for what vLLM would only fail on later, ConfigError for `deterministic`."""
    if device == "cpu":
        check_vllm_heads(model.head_dim, spec.model_dir)
    refuse_deterministic(spec)


def kv_bytes(spec: EngineSpec, model: ModelSpec) -> int:
    """Bytes of each rank's KV cache: kv_tokens in whole blocks, at least one whole context, and the
    block that vLLM keeps for itself."""
    tokens = spec.kv_tokens or spec.max_sequences * spec.max_context_tokens
    # A running sequence's last block is its own, however little of it is used.
    per_sequence = -(-spec.max_context_tokens // BLOCK_TOKENS)
    blocks = -(-tokens // BLOCK_TOKENS) if spec.kv_tokens else per_sequence * spec.max_sequences
    blocks = max(blocks, per_sequence) + 1
    return blocks * BLOCK_TOKENS * token_bytes(spec, model)


def token_bytes(spec: EngineSpec, model: ModelSpec) -> int:
    """Bytes of one token's keys and values on each rank."""
    item = 4 if spec.dtype == "float32" else 2
    return 2 * model.layers * rank_heads(model, spec.tp)[1] * model.head_dim * item


def speculation(spec: EngineSpec) -> dict[str, Any] | None:
    """vLLM's settings of speculation; None where nothing is drafted."""
    if not spec.drafts:
        return None
    return {"method": "custom_class", "model": DRAFTER, "num_speculative_tokens": MOST_DRAFTED}


def start_core(spec: EngineSpec, model: ModelSpec, device: str) -> Any:
    """A vllm.v1.engine.core.EngineCore that can step. Raises EngineError with vLLM's own words."""
    from vllm.engine.arg_utils import EngineArgs  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.core import EngineCore  # pyright: ignore[reportMissingImports]
    from vllm.v1.executor import Executor  # pyright: ignore[reportMissingImports]

    eager = os.environ.get("EARL_VLLM_EAGER", "1" if device == "cpu" else "0") != "0"
    try:
        config = EngineArgs(
            model=spec.model_dir,
            skip_tokenizer_init=True,
            generation_config="vllm",
            load_format="auto" if spec.load_initial else "dummy",
            use_tqdm_on_load=False,
            dtype=spec.dtype,
            tensor_parallel_size=spec.tp,
            max_model_len=spec.max_context_tokens,
            max_num_seqs=spec.max_sequences,
            max_num_batched_tokens=max(spec.prefill_tokens or STEP_TOKENS[device], spec.max_sequences),
            enable_chunked_prefill=True,
            enable_prefix_caching=True,
            block_size=BLOCK_TOKENS,
            kv_cache_memory_bytes=kv_bytes(spec, model),
            async_scheduling=False,
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            enforce_eager=eager,
            worker_extension_cls=WORKER,
            enable_sleep_mode=spec.sleeps,
            speculative_config=speculation(spec),
        ).create_engine_config()
        started = EngineCore(config, Executor.get_class(config), log_stats=False)
    except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
        raise EngineError(
            f"vLLM could not start engine {spec.name} with {spec.model_dir!r}: {error}",
            "see its log on stderr",
        ) from error
    # Drafts are EARL's. With a number here the scheduler gives each request that has one token to compute as
    # many more, of no meaning, and leaves it waiting where these do not fit in the step.
    started.scheduler.num_spec_tokens = 0
    return started
