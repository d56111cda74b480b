"""Attention by parts: the kernel that a step's sequences attend through."""

import numpy as np
import pytest
import torch

from services.rollout.engines.torch.attention import (
    FUSED_SEQUENCES,
    SHORT_TOKENS,
    AttentionPart,
    AttentionShape,
    _Padded,
    _Products,
    parts_of,
)

SHAPE = AttentionShape(heads=6, kv_heads=2, head_dim=8, device=torch.device("cpu"))


def parts(*counts: int) -> list[AttentionPart]:
    slots = np.arange(len(counts))
    return parts_of(SHAPE, slots, np.full(len(counts), 40), np.array(counts))


@pytest.mark.parametrize("drafted", range(FUSED_SEQUENCES + 2))
@pytest.mark.parametrize("prefills", [(), (40, 30), (200,)])
def test_drafts_of_a_few_sequences_do_not_change_the_kernel_of_a_step(drafted, prefills):
    """Two kernels round differently: with a draft a sequence would not sample what it samples without."""
    others = 2 * FUSED_SEQUENCES
    short = parts(*prefills, *[SHORT_TOKENS] * drafted, *[1] * others)[-1 - (drafted > 0) :]
    assert {type(part) for part in short} == {_Products}
    alone = parts(*prefills, *[SHORT_TOKENS] * drafted, *[1] * (FUSED_SEQUENCES - drafted))
    if drafted <= FUSED_SEQUENCES:
        assert not any(isinstance(part, _Products) for part in alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_kernels_attend_to_the_same(dtype):
    torch.manual_seed(0)
    keys, values = torch.randn(2, 4, SHAPE.kv_heads, 64, SHAPE.head_dim).to(dtype)
    query = torch.randn(9, SHAPE.heads, SHAPE.head_dim).to(dtype)
    columns = SHAPE, slice(0, 9), np.arange(4), np.array([40, 3, 17, 20]), np.array([4, 3, 1, 1])
    fused, products = (make(*columns).attend(keys, values, query) for make in (_Padded, _Products))
    assert torch.allclose(fused.float(), products.float(), atol=1e-6 if dtype == torch.float32 else 2e-2)
