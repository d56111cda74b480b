"""A decoder over two ranks, by slices (tp) or by rows (cp), computes and learns what a whole one does."""

from pathlib import Path

import pytest

from earl.config.model import ModelConfig
from earl.errors import IllegalParallelism
from earl.models.create import create_model
from earl.models.spec import ModelSpec
from earl.models.tp import check_parallelism, legal_parallelisms
from earl.parallelism import Parallelism
from tests.support import sliced_decoder
from tests.support.processes import run_ranks


def test_two_ranks_equal_one(tmp_path: Path):
    for family, kv_heads in (("qwen2", 2), ("qwen3", 1)):
        sizes = {"family": family, "hidden_size": 32, "heads": 4, "kv_heads": kv_heads, "words": ["a", "b"]}
        model = create_model(tmp_path / family, ModelConfig.model_validate({"scratch": sizes}), 0)
        assert run_ranks(sliced_decoder.compare, 2, model) == [True, True]


def test_what_does_not_divide_is_refused_with_what_does():
    spec = ModelSpec("llama", 24, 2, 8, 2, 4, 48, 29, tied=True)
    for tp, cp in ((1, 8), (2, 4), (8, 1), (4, 2)):
        check_parallelism(spec, tp, cp)
    with pytest.raises(IllegalParallelism, match=r"cp 4 .* 2 heads and 1 kv_heads .* cp 1 or 2 with tp 4"):
        check_parallelism(spec, 4, 4)
    with pytest.raises(IllegalParallelism, match="tp 3"):
        check_parallelism(spec, 3, 1)
    degrees = [(one.dp, one.tp, one.cp) for one in legal_parallelisms(spec, 4)]
    assert degrees == [(4, 1, 1), (2, 1, 2), (1, 1, 4), (2, 2, 1), (1, 2, 2), (1, 4, 1)]
    assert legal_parallelisms(spec, 3) == [Parallelism(3)]
