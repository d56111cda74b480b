"""EARL's sampler in place of vLLM's, over a stand-in for vLLM's batch."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from earl.config.sampling_filters import SamplingFilters
from services.rollout.engines.contract.sampling import sample
from services.rollout.engines.contract.sampling_columns import SamplingColumns
from tests.support.foreign_engines import install_vllm

WIDTH = 20


@pytest.fixture
def sampler_type(monkeypatch: pytest.MonkeyPatch) -> Any:
    install_vllm(monkeypatch)
    monkeypatch.delitem(sys.modules, "services.rollout.engines.vllm.sampler", raising=False)
    from services.rollout.engines.vllm import sampler

    yield sampler.SeededSampler
    sys.modules.pop("services.rollout.engines.vllm.sampler", None)


def test_each_row_has_the_filters_of_its_request_and_the_tokens_that_it_sees(sampler_type: Any) -> None:
    asked = [
        (0.7, SamplingFilters(repetition_penalty=1.5, top_k=4)),
        (1.0, SamplingFilters()),
        (0.0, SamplingFilters(repetition_penalty=3.0, min_p=0.5)),
    ]
    tokens = np.zeros((3, 8), dtype=np.int32)
    lengths = np.array([5, 2, 7])
    for row, length in enumerate(lengths):
        tokens[row, :length] = np.random.default_rng(row).integers(0, WIDTH, length)
    options = {
        str(row): {"temperature": temperature, "seed": row, "filters": filters.active}
        for row, (temperature, filters) in enumerate(asked)
    }
    runner = SimpleNamespace(
        input_batch=SimpleNamespace(
            num_reqs=3,
            req_ids=list(options),
            num_tokens_no_spec=lengths.astype(np.int32),
            token_ids_cpu=tokens,
        ),
        requests={
            name: SimpleNamespace(sampling_params=SimpleNamespace(extra_args=option))
            for name, option in options.items()
        },
    )
    logits = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0)) * 3
    output = sampler_type(runner).forward(logits, None)
    columns = SamplingColumns.of(np.zeros(3, np.float32), np.zeros(3, np.uint64))
    for row, (temperature, filters) in enumerate(asked):
        columns.put(row, temperature, row, filters)
    contexts = [tokens[row, :length].astype(np.int64) for row, length in enumerate(lengths)]
    ids, logprobs = sample(logits, columns, lengths, contexts)
    assert output.sampled_token_ids[:, 0].tolist() == ids.tolist()
    assert output.logprobs_tensors.values[1][:, 0].tolist() == logprobs.tolist()
