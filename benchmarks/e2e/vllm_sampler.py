"""vLLM as TRL's sampler on a CPU: the adapter that `earl bench e2e` gives TRL.

TRL's own `use_vllm=True` (mode "colocate": vLLM in the trainer's process) starts vLLM with settings for GPUs,
and hands over weights with `model.load_weights`, which fails on CPUs: vLLM has packed them there. Two
methods are replaced; generation and everything else is TRL's. Weights go over in memory, at the start of
every step that follows an optimizer step, as TRL does it.

    ENVIRONMENT    variables that the process is started with
    install()      before GRPOTrainer is made with use_vllm=True, vllm_mode="colocate"
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

# For the process's environment: everything in one process, on the threads that torch has.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def install(**engine: Any) -> None:
    """Puts the adapter in the place of TRL's. engine: arguments of vllm.LLM beside TRL's own settings."""
    from trl.generation.vllm_generation import VLLMGeneration
    from trl.trainer import grpo_trainer
    from vllm import LLM

    class CpuVllmGeneration(VLLMGeneration):
        """TRL's VLLMGeneration in mode "colocate" with an engine and a hand-over that CPUs have."""

        def _init_vllm(self) -> None:
            self._llm_weights_sleeping = False
            self.llm = LLM(
                model=self.model.name_or_path,
                dtype=str(self.model.dtype).removeprefix("torch."),
                max_model_len=self.max_model_length,
                max_num_seqs=self.max_num_seqs,
                logprobs_mode="processed_logprobs",
                **engine,
            )

        def sync_weights(self) -> None:
            """Loads the trainer's weights, and drops the KV cache of the old ones."""
            weights = ((name, tensor.detach()) for name, tensor in self._iter_named_params())
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            if self.model.config.tie_word_embeddings:
                self.llm.apply_model(tie_head)
            self.llm.reset_prefix_cache()

    grpo_trainer.VLLMGeneration = CpuVllmGeneration


def tie_head(model: Any) -> None:
    """Packs vLLM's head again: one that is the embedding gets no weights of its own, so its reload leaves
    what was packed of the old ones."""
    model.lm_head.weight = model.model.embed_tokens.weight
    model.lm_head.quant_method.process_weights_after_loading(model.lm_head)
