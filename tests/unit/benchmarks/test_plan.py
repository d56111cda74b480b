"""`earl bench plan`: the cases are what they say, and every copy is counted."""

from __future__ import annotations

from benchmarks.plan import CP, EXPERTS, HIDDEN, INTERMEDIATE, LAYERS, WEIGHTS, batch_case, measure


def test_weights_of_an_expert_parallel_engine():
    """8 of 256 experts of every layer, whole, each matrix from 16 trainer ranks."""
    found = measure("fsdp 16 x ep 64 -> dp 32 x ep 32", 1, 1)
    tensors = LAYERS * (EXPERTS // 32) * 3
    assert found["copies"] == 16 * tensors
    assert found["read_bytes"] == tensors * HIDDEN * INTERMEDIATE * 2
    assert found["peers"] == 32


def test_replicas_are_read_evenly():
    reads = WEIGHTS["replicas 8 x fsdp 128 -> dp 128 x tp 8"](5)
    assert reads.size_bytes == LAYERS * EXPERTS * 3 * HIDDEN * INTERMEDIATE * 2 // 8
    by_part = reads.loads.reshape(8, 128)
    assert (by_part.max(axis=0) <= 1.01 * by_part.mean(axis=0)).all()


def test_context_parallel_ranks_share_the_tokens_of_their_sequences():
    case = batch_case()
    tokens = [int(block.elements.sum()) for rank in range(CP) for block in case(rank).blocks]
    assert max(tokens) <= 1.02 * min(tokens)
