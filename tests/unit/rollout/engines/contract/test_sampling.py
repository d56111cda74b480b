"""Sampling is a function of (seed, position); without filters its bits are those of before there were any."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.config.sampling_filters import SamplingFilters
from services.rollout.engines.contract.sampling import (
    BELOW_ONE,
    BLOCK,
    sample,
    sample_by_row,
    uniforms,
)
from services.rollout.engines.contract.sampling_columns import SamplingColumns


def columns(temperature: np.ndarray, seeds: np.ndarray) -> SamplingColumns:
    return SamplingColumns.of(temperature.astype(np.float32), seeds.astype(np.uint64))


def unfiltered(logits, temperatures, seeds, positions):
    """`sample` as it was before it knew filters, with the search that it had."""
    greedy = temperatures == 0
    heat = np.where(greedy, np.float32(1), temperatures).astype(np.float32)
    divisor = torch.from_numpy(heat)[:, None]
    weights = logits.float() if logits.dtype != torch.float32 else logits.clone()
    if (heat != 1).any():
        weights.div_(divisor)
    top, ids = weights.max(-1)
    weights.sub_(top[:, None]).exp_()
    if logits.shape[1] % BLOCK:
        weights = F.pad(weights, (0, -logits.shape[1] % BLOCK))
    blocks = weights.unflatten(-1, (-1, BLOCK))
    cumulative = blocks.sum(-1).double().cumsum_(-1)
    total = cumulative[:, -1]
    if not greedy.all():
        points = torch.from_numpy(uniforms(seeds, positions)) * total
        points = torch.minimum(points, cumulative[:, -1] * BELOW_ONE)
        block = torch.searchsorted(cumulative, points[:, None], right=True).clamp_(max=blocks.shape[1] - 1)
        before = torch.where(block > 0, cumulative.gather(1, (block - 1).clamp_(min=0)), 0.0)
        inner = blocks.gather(1, block[:, :, None].expand(-1, 1, BLOCK)).squeeze(1).double().cumsum_(-1)
        rest = torch.minimum(points[:, None] - before, inner[:, -1:] * BELOW_ONE)
        inside = torch.searchsorted(inner, rest, right=True).clamp_(max=BLOCK - 1)
        drawn = (block * BLOCK + inside).squeeze(1)
        ids = torch.where(torch.from_numpy(greedy), ids, drawn) if greedy.any() else drawn
    chosen = (logits.gather(-1, ids[:, None]).float() / divisor).squeeze(-1) - top
    return ids.numpy(), (chosen.double() - total.log()).float().numpy()


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 5),
    width=st.sampled_from([1, 2, 127, 128, 129, 300]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    temperatures=st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.7]), min_size=5, max_size=5),
    filtered=st.sets(st.integers(0, 4)),
    seed=st.integers(0, 1 << 30),
)
def test_without_filters_the_bits_are_those_of_before(rows, width, dtype, temperatures, filtered, seed):
    """So are the bits of a row without filters whose neighbours have some."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(rows, width, generator=generator) * 4).to(dtype)
    heat = np.array(temperatures[:rows], dtype=np.float32)
    seeds, positions = np.arange(seed, seed + rows, dtype=np.uint64), np.arange(rows)
    expected = unfiltered(logits, heat, seeds, positions)
    plain = sample(logits, columns(heat, seeds), positions)
    mixed = columns(heat, seeds)
    for row in filtered & set(range(rows)):
        mixed.put_filters(row, SamplingFilters(repetition_penalty=1.5, top_k=3, top_p=0.5, min_p=0.2))
    others = [row for row in range(rows) if not mixed.filtered[row]]
    contexts = [np.arange(width)] * rows
    for results, chosen in ((plain, list(range(rows))), (sample(logits, mixed, positions, contexts), others)):
        for ours, theirs in zip(results, expected, strict=True):
            assert ours.dtype == theirs.dtype and ours[chosen].tobytes() == theirs[chosen].tobytes()


def test_columns_of_rows_may_be_repeated():
    table = columns(np.array([0, 0.5, 1]), np.array([5, 6, 7]))
    table.put(1, 0.25, -1, SamplingFilters(top_k=3, top_p=0.5, min_p=0.25, repetition_penalty=2.0))
    repeated = table.rows(np.array([1, 1, 2]))
    assert repeated.temperature.tolist() == [0.25, 0.25, 1]
    assert repeated.seed.tolist() == [2**64 - 1, 2**64 - 1, 7]
    assert repeated.top_k.tolist() == [3, 3, 0] and repeated.top_p.tolist() == [0.5, 0.5, 1]
    assert repeated.min_p.tolist() == [0.25, 0.25, 0] and repeated.repetition_penalty.tolist() == [2, 2, 1]
    assert repeated.filtered.tolist() == [True, True, False] and repeated.penalises
    assert not table.rows(slice(2, 3)).penalises
    table.put(1, 1.0, 6, SamplingFilters())
    assert not table.filtered.any()


def test_uniforms_are_uniform_and_independent():
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(100))
    draws = uniforms(seeds.ravel(), positions.ravel())
    assert ((draws >= 0) & (draws < 1)).all()
    assert len(np.unique(draws)) == draws.size
    counts, _ = np.histogram(draws, 20, (0, 1))
    # 20,000 draws in 20 bins: chi-squared with 19 degrees of freedom stays below 60.
    assert ((counts - 1000) ** 2 / 1000).sum() < 60
    grid = draws.reshape(100, 200)
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03
    assert uniforms(seeds[5, 3:4], positions[5, 3:4]) == grid[5, 3]


def test_impossible_tokens_are_never_sampled():
    logits = torch.full((5000, 8), float("-inf"))
    logits[:, 3] = 0.0
    logits[:, 6] = 1.0
    ids, logprobs = sample(logits, columns(np.ones(5000), np.arange(5000)), np.zeros(5000, np.int64))
    assert set(ids) == {3, 6} and abs((ids == 6).mean() - 0.731) < 0.03
    assert np.allclose(np.exp(logprobs[ids == 6]), 0.731, atol=1e-3)


def test_greedy_and_sampled_rows_mix():
    torch.manual_seed(0)
    logits = torch.randn(6, 11)
    heat = np.array([0, 1, 0, 2, 0.5, 0], dtype=np.float32)
    rows, positions = columns(heat, np.arange(6)), np.arange(6)
    ids, logprobs = sample(logits, rows, positions)
    greedy = heat == 0
    assert (ids[greedy] == logits.argmax(-1).numpy()[greedy]).all()
    for row in range(6):
        only = slice(row, row + 1)
        alone, logprob = sample(logits[only], rows.rows(only), positions[only])
        assert alone[0] == ids[row] and abs(logprob[0] - logprobs[row]) < 1e-6
        expected = torch.log_softmax(logits[row] / (heat[row] or 1.0), -1)[int(ids[row])]
        assert abs(float(expected) - logprobs[row]) < 1e-5


def test_row_by_row_gives_what_each_row_gives_alone():
    logits = torch.randn(4, 200, generator=torch.Generator().manual_seed(2))
    rows, positions = columns(np.array([0.0, 1.0, 0.7, 1.0]), np.arange(4)), np.arange(4)
    rows.put_filters(2, SamplingFilters(top_p=0.5, repetition_penalty=1.4))
    contexts = [np.arange(row, 50) for row in range(4)]
    together = sample_by_row(logits, rows, positions, contexts)
    for row in range(4):
        only = slice(row, row + 1)
        alone = sample(logits[only], rows.rows(only), positions[only], contexts[only])
        assert [results[row] for results in together] == [results[0] for results in alone]
    # Contexts are needed by penalties alone.
    first = slice(0, 2)
    ids, _ = sample_by_row(logits[first], rows.rows(first), positions[first])
    assert ids.tolist() == together[0][:2].tolist()


@pytest.mark.parametrize("filters", [SamplingFilters(), SamplingFilters(top_k=2, top_p=0.9, min_p=0.1)])
def test_logits_that_are_not_finite_are_refused(filters: SamplingFilters):
    for broken in ([float("nan"), 0.0], [float("inf"), 0.0], [float("-inf")] * 2):
        rows = columns(np.ones(2), np.zeros(2))
        for row in range(2):
            rows.put_filters(row, filters)
        with pytest.raises(FloatingPointError, match="1 of 2"):
            sample(torch.tensor([[0.0, 1.0], broken]), rows, np.arange(2))
