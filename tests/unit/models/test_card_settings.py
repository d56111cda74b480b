"""Settings of models on cards, as far as a processor shows them: the allocator, attention kernels."""

import os

import pytest
import torch

from earl.models.card_settings import settle_card
from earl.models.packing import repeats_heads


@pytest.fixture
def environment(monkeypatch):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        # Set first: what was not set would not be taken back.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def test_segments_grow_unless_the_environment_says_otherwise(environment):
    settle_card()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    environment.setenv("PYTORCH_ALLOC_CONF", "")
    environment.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    settle_card()
    assert os.environ["PYTORCH_ALLOC_CONF"] == ""


def test_attention_builds_no_plan_for_every_shape(environment):
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        settle_card()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        # What takes its place.
        assert torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(
    ("is_cuda", "dtype", "repeats"),
    [
        (False, torch.float32, True),
        (False, torch.bfloat16, True),
        (True, torch.float32, True),
        (True, torch.bfloat16, False),
    ],
)
def test_heads_are_repeated_where_no_fused_kernel_takes_groups(is_cuda, dtype, repeats):
    assert repeats_heads(is_cuda, dtype) is repeats
