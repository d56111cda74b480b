"""vLLM's last step replaced: EARL's sampling, so that a token is a function of (seed, position) alone.

vLLM draws from one generator a request: what a token becomes then depends on how many draws went
before, and a turn that continues in another request, or on another engine, draws other numbers. Here
every engine uses services.rollout.engines.contract.sampling. Imported in vLLM's worker processes only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput  # pyright: ignore[reportMissingImports]
from vllm.v1.sample.sampler import Sampler  # pyright: ignore[reportMissingImports]

from earl.config.sampling_filters import SamplingFilters
from services.rollout.engines.contract.sampling import sample
from services.rollout.engines.contract.sampling_columns import SamplingColumns


class SeededSampler(Sampler):
    """Samples rows [N, V] of the runner's batch; temperature, seed and filters are in each request's
    extra_args.

    A row without a finite distribution gets log-prob NaN (the whole step does): the engine then fails
    the requests instead of its process.
    """

    def __init__(self, runner: Any) -> None:
        super().__init__(logprobs_mode="processed_logprobs")
        self._runner = runner

    def forward(self, logits: torch.Tensor, sampling_metadata: Any, *rest: Any, **named: Any) -> Any:
        batch = self._runner.input_batch
        rows = logits.shape[0]
        if rows != batch.num_reqs:  # a profiling run of vLLM's
            return super().forward(logits, sampling_metadata, *rest, **named)
        # Rows whose prompt is not yet whole are sampled too, and thrown away by vLLM.
        ids, logprobs = self.draw(logits, np.arange(rows), np.zeros(rows, dtype=np.int64))
        chosen = torch.from_numpy(ids).to(logits.device, torch.int32)[:, None]
        column = torch.from_numpy(np.asarray(logprobs, dtype=np.float32)).to(logits.device)[:, None]
        ranks = torch.zeros(rows, dtype=torch.int32, device=logits.device)
        return SamplerOutput(
            sampled_token_ids=chosen, logprobs_tensors=LogprobsTensors(chosen, column, ranks)
        )

    def draw(
        self,
        logits: torch.Tensor,
        rows: np.ndarray,
        behind: np.ndarray,
        drafted: Sequence[np.ndarray] = (),
    ) -> tuple[np.ndarray, np.ndarray]:
        """One token for each row of logits [N, V]: (ids [N] int64, logprobs [N] float32).

        rows [N]: the request of each, as its place in the batch; behind [N]: how many drafted tokens it
        stands behind; drafted: those of each request.
        """
        batch, runner = self._runner.input_batch, self._runner
        options = [runner.requests[name].sampling_params.extra_args for name in batch.req_ids]
        temperatures = np.array([option["temperature"] for option in options], dtype=np.float32)
        seeds = np.array([option["seed"] for option in options], dtype=np.uint64)
        columns = SamplingColumns.of(temperatures, seeds)
        for row, option in enumerate(options):
            if option["filters"]:
                columns.put_filters(row, SamplingFilters(**option["filters"]))
        columns = columns.rows(rows)
        # Tokens that are there: the position of the next one.
        lengths = batch.num_tokens_no_spec[rows].astype(np.int64)
        contexts: list[np.ndarray] = []
        if columns.penalises:
            for row, length, after in zip(rows.tolist(), lengths.tolist(), behind.tolist(), strict=True):
                context = batch.token_ids_cpu[row, :length].astype(np.int64)
                contexts.append(np.concatenate([context, drafted[row][:after]]) if after else context)
        try:
            return sample(logits, columns, lengths + behind, contexts)
        except FloatingPointError:
            count = len(rows)
            return np.zeros(count, dtype=np.int64), np.full(count, np.nan, dtype=np.float32)
