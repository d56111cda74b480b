"""The memory benchmark's cases are processes of their own; one that does not fit says so."""

from __future__ import annotations

import pytest
import torch

from benchmarks.trainer_memory import in_fresh_process, plain_logprobs, summary
from earl.models.logprobs import token_logprobs

CASE = {
    "tokens": 64,
    "layers": 1,
    "vocabulary": 512,
    "dtype": "bfloat16",
    "threads": 1,
    "chunked_logprobs": True,
    "activation_checkpointing": True,
}


@pytest.mark.slow
def test_a_case_is_measured_or_said_not_to_fit() -> None:
    fits = in_fresh_process({**CASE, "limit_gib": 1.0})
    assert not fits["oom"] and fits["peak_gib"] < 1.0 and fits["seconds"] > 0.0
    assert in_fresh_process({**CASE, "tokens": 4096, "vocabulary": 20_000, "limit_gib": 0.05})["oom"]


def test_both_ways_compute_the_same() -> None:
    hidden, weight, targets = torch.randn(9, 8), torch.randn(20, 8), torch.arange(9)
    for ours, plain in zip(
        token_logprobs(hidden, weight, targets, 0.7),
        plain_logprobs(hidden, weight, targets, 0.7),
        strict=True,
    ):
        torch.testing.assert_close(ours, plain)


def test_what_does_not_fit_has_no_ratio() -> None:
    def run(chunked: bool, checkpointed: bool, peak: float | None) -> dict:
        return {"chunked_logprobs": chunked, "activation_checkpointing": checkpointed, "peak_gib": peak}

    runs = [run(True, True, 2.0), run(True, False, 5.0), run(False, True, 3.0), run(False, False, None)]
    assert summary(runs) == {
        "peak_gib": 2.0,
        "vs_no_checkpointing": 2.5,
        "vs_no_chunks": 1.5,
        "vs_neither": None,
    }
