"""vLLM by itself, for `earl bench history`: seconds of batches, with its suffix decoding or without.

Runs in vLLM's environment. Its argument names a file with one JSON object: model, dtype, threads, context,
sequences, new, temperature; suffix: whether it drafts; epoch: prompts (token ids) that it answers first,
twice each; batches: lists of prompts. The result on stdout: {"batches": [[seconds, tokens], ...]}. Prompts
of a batch are computed before.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.history.texts import EPOCH_ANSWERS
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.vllm.core import BLOCK_TOKENS, prepare_environment

# As many as EARL drafts.
MOST_DRAFTED = 16


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    prepare_environment(EngineSpec(name="bench", model_dir=job["model"], engine="vllm"))
    os.environ["OMP_NUM_THREADS"] = str(job["threads"])
    import torch
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]

    torch.set_num_threads(job["threads"])
    suffix = {"method": "suffix", "num_speculative_tokens": MOST_DRAFTED} if job["suffix"] else None
    # vLLM writes to stdout itself.
    answers, sys.stdout = sys.stdout, sys.stderr
    llm: Any = LLM(
        model=job["model"],
        dtype=job["dtype"],
        max_model_len=job["context"],
        max_num_seqs=job["sequences"],
        block_size=BLOCK_TOKENS,
        kv_cache_memory_bytes=1 << 30,
        enforce_eager=True,
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
        generation_config="vllm",
        speculative_config=suffix,
    )
    seeds = iter(range(1 << 30))

    def answer(prompts: list[list[int]], new: int) -> int:
        """Answers the prompts at once; returns the tokens."""
        parameters = [
            SamplingParams(
                temperature=job["temperature"], max_tokens=new, seed=next(seeds), detokenize=False,
                ignore_eos=True,
            )
            for _ in prompts
        ]  # fmt: skip
        given = [{"prompt_token_ids": ids} for ids in prompts]
        done = llm.generate(given, parameters, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in done)

    for _ in range(EPOCH_ANSWERS):
        answer(job["epoch"], job["new"])
    measured: list[tuple[float, int]] = []
    for prompts in job["batches"]:
        answer(prompts, 1)
        started = time.perf_counter()
        tokens = answer(prompts, job["new"])
        measured.append((time.perf_counter() - started, tokens))
    print(json.dumps({"batches": measured}), file=answers, flush=True)


if __name__ == "__main__":
    main()
