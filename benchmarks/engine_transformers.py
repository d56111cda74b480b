"""transformers' generate in a process of its own, for `earl bench engine`.

One JSON object a line on stdin: {"prompts": [[token, ...], ...], "new": tokens}; one on stdout for each:
{"seconds": of the call, "tokens": generated}. Greedy, end-of-sequence ignored, prompts padded on the left.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from earl.models.card_settings import settle_card


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    # As the torch engine has it: on a card it makes generate faster, too.
    settle_card()
    model = AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=getattr(torch, arguments.dtype)
    ).eval()
    model = model.to(arguments.device)
    model.generation_config.eos_token_id = None
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        started = time.perf_counter()
        tokens = generate(model, request["prompts"], request["new"])
        print(json.dumps({"seconds": time.perf_counter() - started, "tokens": tokens}), flush=True)


def generate(model: Any, prompts: list[list[int]], new: int) -> int:
    """Generates `new` tokens for each prompt in one batch; returns how many were generated."""
    longest = max(map(len, prompts))
    ids = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    ids, mask = ids.to(model.device), mask.to(model.device)
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=mask, max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0
        )
    if out.is_cuda:
        torch.cuda.synchronize()
    return (out.shape[1] - longest) * len(prompts)


if __name__ == "__main__":
    main()
