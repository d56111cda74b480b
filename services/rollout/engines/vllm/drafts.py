"""Drafts in vLLM: proposed from what a request's episode may repeat, verified by EARL's sampling.

    sampled tokens ─► RequestDrafter: lookup of each request, how many pay ─► vLLM schedules them
    rows of logits behind the last token and each drafted one ─► SeededVerifier: a row's token counts
                                                                 while those before it were drafted

vLLM's own verifier draws from a generator of each request, so that tokens depend on what was drafted. Here
they are those that would be sampled without drafts (services.rollout.engines.drafts.drafting). Imported in
vLLM's worker processes only; vLLM makes the drafter itself (speculative method "custom_class").
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput  # pyright: ignore[reportMissingImports]

from services.rollout.engines.drafts.drafting import Drafting, SamplingSequence
from services.rollout.engines.vllm.sampler import SeededSampler

# Stands for no token in vLLM's outputs.
NONE = -1


class RequestDrafter:
    """Drafts for the requests of a runner's batch; of use once it is bound to the runner."""

    def __init__(self, vllm_config: Any) -> None:
        slots = vllm_config.scheduler_config.max_num_seqs
        self._longest = vllm_config.model_config.max_model_len
        self.drafting = Drafting(slots, vllm_config.speculative_config.num_speculative_tokens)
        self._runner: Any = None
        # By request in the batch; slots of no request.
        self._slots: dict[str, int] = {}
        self._free = list(range(slots))[::-1]
        # By request, what it has drafted for the step that comes; and what was verified in this one.
        self._made: dict[str, list[int]] = {}
        self.verified: dict[str, list[int]] = {}
        # When the step began, and tokens that it computes.
        self._began_s, self._computed = 0.0, 0

    def bind(self, runner: Any) -> None:
        """Begins to draft for a runner's batches, and takes the time of its steps."""
        self._runner, execute = runner, runner.execute_model
        # vLLM would draft zeros, for all, where one context is near the longest; here each is bounded itself.
        runner.effective_drafter_max_model_len = sys.maxsize

        def execute_model(scheduler_output: Any, *rest: Any, **named: Any) -> Any:
            self._began_s = time.perf_counter()
            self._computed = scheduler_output.total_num_scheduled_tokens
            return execute(scheduler_output, *rest, **named)

        runner.execute_model = execute_model
        runner.rejection_sampler = SeededVerifier(runner, self)

    def load_model(self, *_: Any) -> None:
        """Loads nothing: vLLM asks every drafter."""

    def propose(
        self, sampled: list[list[int]], lengths: np.ndarray, tokens: np.ndarray, **_: Any
    ) -> list[list[int]]:
        """vLLM's question after a step: what to draft for each request of the batch.

        sampled: tokens that each has more, none while its prompt is not whole. lengths [R]: its tokens now;
        tokens [R, C]: their ids.
        """
        names = self._runner.input_batch.req_ids[: len(sampled)]
        self._seat(names)
        sampling = [row for row, ids in enumerate(sampled) if ids]
        # What vLLM puts in the place of a draft is none of ours.
        drafted = [self.verified.get(names[row], []) for row in sampling]
        ours = [
            len(ids) if ids == self._made.get(names[row], [])[: len(ids)] else 0
            for row, ids in zip(sampling, drafted, strict=True)
        ]
        slots = [self._slots[names[row]] for row in sampling]
        self.drafting.note(slots, ours, [len(sampled[row]) for row in sampling])
        self.drafting.policy.took(self._computed, time.perf_counter() - self._began_s)
        continuing = [row for row in sampling if sampled[row][-1] not in self.stops(names[row])]
        sequences = [self._sequence(names[row], int(lengths[row]), tokens[row]) for row in continuing]
        # What does not fit in the step is left out by vLLM's scheduler.
        made = self.drafting.draft(sequences, len(sampled))
        drafts: list[list[int]] = [[] for _ in sampled]
        for row, ids in zip(continuing, made, strict=True):
            drafts[row] = ids
        self._made |= dict(zip(names, drafts, strict=True))
        self.verified = {}
        return drafts

    def _seat(self, names: list[str]) -> None:
        """Gives each request of the batch a slot. One that a step leaves out keeps its own while there are
        others."""
        for name in self._slots.keys() - self._runner.requests.keys():
            self._unseat(name)
        for name in names:
            if name not in self._slots:
                if not self._free:
                    self._unseat((self._slots.keys() - set(names)).pop())
                self._slots[name] = self._free.pop()

    def _unseat(self, name: str) -> None:
        self._free.append(self._slots.pop(name))
        self._made.pop(name, None)

    def stops(self, name: str) -> Collection[int]:
        """The tokens that end a request's answer."""
        return self._runner.requests[name].sampling_params.stop_token_ids or ()

    def _sequence(self, name: str, length: int, tokens: np.ndarray) -> SamplingSequence:
        request = self._runner.requests[name]
        options = request.sampling_params.extra_args
        more = request.sampling_params.max_tokens - len(request.output_token_ids)
        return SamplingSequence(
            self._slots[name],
            name,
            options["references"],
            options["task_references"],
            tokens[:length],
            min(more, self._longest - length) - 1,
        )


class SeededVerifier:
    """Stands for vLLM's rejection sampler: of each request's rows those count that sampled what was drafted,
    and the first that did not."""

    def __init__(self, runner: Any, drafter: RequestDrafter) -> None:
        self._runner, self._drafter = runner, drafter
        self._sampler: SeededSampler = runner.sampler
        self._vllms = runner.rejection_sampler

    def __call__(self, metadata: Any, draft_probs: Any, logits: torch.Tensor, sampling: Any) -> Any:
        batch, numbers = self._runner.input_batch, metadata.num_draft_tokens
        requests = len(numbers)
        if requests != batch.num_reqs:  # a profiling run of vLLM's
            return self._vllms(metadata, draft_probs, logits, sampling)
        drafted = np.split(metadata.draft_token_ids.cpu().numpy(), np.cumsum(numbers)[:-1])
        self._drafter.verified = {
            name: ids.tolist() for name, ids in zip(batch.req_ids, drafted, strict=False)
        }
        each = np.asarray(numbers) + 1
        rows = np.repeat(np.arange(requests), each)
        firsts = np.cumsum(each) - each
        ids, logprobs = self._sampler.draw(logits, rows, np.arange(len(rows)) - firsts[rows], drafted)
        kept = np.full((requests, max(numbers) + 1), NONE, dtype=np.int32)
        column = np.zeros(kept.shape, dtype=np.float32)
        for row, (first, draft) in enumerate(zip(firsts.tolist(), drafted, strict=True)):
            stops = self._drafter.stops(batch.req_ids[row])
            count = agreed(ids[first : first + len(draft) + 1], draft, stops)
            kept[row, :count] = ids[first : first + count]
            column[row, :count] = logprobs[first : first + count]
        chosen = torch.from_numpy(kept).to(logits.device)
        flat = chosen.reshape(-1, 1).clamp(min=0)
        of_each = torch.from_numpy(column.reshape(-1, 1)).to(logits.device)
        ranks = torch.zeros(kept.size, dtype=torch.int32, device=logits.device)
        return SamplerOutput(sampled_token_ids=chosen, logprobs_tensors=LogprobsTensors(flat, of_each, ranks))


def agreed(sampled: np.ndarray, drafted: np.ndarray, stops: Collection[int]) -> int:
    """Returns how many of the sampled tokens [D + 1] count, whose rows follow the drafted ones [D]: up to the
    first that was not drafted, or is a stop token."""
    for place, token in enumerate(sampled[:-1].tolist()):
        if token != int(drafted[place]) or token in stops:
            return place + 1
    return len(sampled)
