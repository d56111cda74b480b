"""Filtered sampling beside transformers' own logits processors, and beside distributions done by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.config.sampling_filters import SamplingFilters
from services.rollout.engines.contract import filters as filters_module
from services.rollout.engines.contract.sampling import sample, uniforms
from services.rollout.engines.contract.sampling_columns import SamplingColumns
from tests.support.processors import processors


def by_transformers(
    logits: torch.Tensor, context: np.ndarray, filters: SamplingFilters, temperature: float
) -> np.ndarray:
    """[V] float64: the probabilities that transformers samples from."""
    ids = torch.from_numpy(context)[None]
    return processors(filters, temperature)(ids, logits[None].double())[0].softmax(-1).numpy()


def draw(logits: torch.Tensor, filters: SamplingFilters, temperature: float, draws: int = 1, context=(0,)):
    """Samples a row of logits `draws` times: (ids, logprobs, the uniforms that they come from)."""
    seeds, positions = np.arange(draws, dtype=np.uint64), np.arange(draws)
    rows = SamplingColumns.of(np.zeros(draws, np.float32), seeds.copy())
    for row in range(draws):
        rows.put(row, temperature, row, filters)
    contexts = [np.asarray(context, dtype=np.int64)] * draws
    ids, logprobs = sample(logits.expand(draws, -1), rows, positions, contexts)
    return ids, logprobs, uniforms(seeds, positions)


FILTERS = st.builds(
    SamplingFilters,
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.3, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 10_000]),
    top_p=st.sampled_from([1.0, 1e-6, 0.1, 0.5, 0.9, 0.99]),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
)


@settings(deadline=None, max_examples=100)
@given(
    filters=FILTERS,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.8]),
    width=st.sampled_from([1, 3, 61, 128, 200]),
    spread=st.sampled_from([0.5, 3.0, 10.0]),
    seed=st.integers(0, 1 << 30),
)
def test_samples_are_the_inverse_of_transformers_distribution(filters, temperature, width, spread, seed):
    """The token is the first whose cumulative probability, in the order of ids, exceeds the uniform; its
    log-prob is that of the distribution."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(width, generator=generator) * spread
    context = torch.randint(width, (9,), generator=generator).numpy()
    expected = by_transformers(logits, context, filters, temperature)
    ids, logprobs, points = draw(logits, filters, temperature, 40, context)
    assert np.allclose(logprobs, np.log(expected[ids]), atol=2e-5)
    if temperature == 0:
        assert (ids == expected.argmax()).all()
        return
    cumulative = expected.cumsum()
    # Float32 weights move the bounds between two tokens a little.
    assert (points < cumulative[ids] + 1e-5).all()
    assert (points > cumulative[ids] - expected[ids] - 1e-5).all()


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        (SamplingFilters(top_k=2), {1: 0.4, 3: 0.3}),
        (SamplingFilters(top_p=0.65), {1: 0.4, 3: 0.3}),
        (SamplingFilters(top_p=0.75), {1: 0.4, 3: 0.3, 0: 0.2}),
        (SamplingFilters(min_p=0.45), {1: 0.4, 3: 0.3, 0: 0.2}),
        (SamplingFilters(min_p=0.7), {1: 0.4, 3: 0.3}),
        # Of what top_k keeps, 0.4 / 0.9 = 0.44 and 0.7 / 0.9 = 0.78.
        (SamplingFilters(top_k=3, top_p=0.7), {1: 0.4, 3: 0.3}),
        (SamplingFilters(top_k=3, top_p=0.8, min_p=0.6), {1: 0.4, 3: 0.3}),
    ],
)
def test_kept_tokens_are_drawn_as_often_as_their_shares(filters: SamplingFilters, kept: dict[int, float]):
    logits = torch.tensor([0.2, 0.4, 0.1, 0.3]).log()
    ids, logprobs, _ = draw(logits, filters, 1.0, 4000)
    total = sum(kept.values())
    assert set(ids.tolist()) == set(kept)
    for token, probability in kept.items():
        # Four standard deviations of 4,000 draws are at most 0.032.
        assert abs((ids == token).mean() - probability / total) < 0.032
        assert np.allclose(logprobs[ids == token], np.log(probability / total), atol=1e-5)


@pytest.mark.parametrize(
    "filters", [SamplingFilters(top_k=2), SamplingFilters(top_p=0.5), SamplingFilters(top_k=2, top_p=0.6)]
)
def test_equal_scores_are_kept_or_dropped_together(filters: SamplingFilters):
    """Three tokens are as probable as the second: which of them a device sorts first decides nothing."""
    logits = torch.tensor([0.25, 0.125, 0.25, 0.25, 0.125]).log()
    ids, logprobs, _ = draw(logits, filters, 1.0, 500)
    assert set(ids.tolist()) == {0, 2, 3} and np.allclose(logprobs, np.log(1 / 3), atol=1e-6)


def test_penalties_are_of_the_tokens_that_each_row_sees():
    """Rows of one sequence, as those of a draft: each is penalised for what comes before it, and no more."""
    logits = torch.tensor([2.0, 1.0, -1.0, 0.0]).expand(3, -1)
    rows = SamplingColumns.of(np.zeros(1, np.float32), np.zeros(1, np.uint64))
    rows.put(0, 1.0, 3, SamplingFilters(repetition_penalty=4.0))
    sequence = np.array([2, 2, 0, 1])
    contexts = [sequence[: length + 1] for length in range(1, 4)]
    ids, logprobs = sample(logits, rows.rows(np.zeros(3, np.int64)), np.arange(2, 5), contexts)
    expected = [[2.0, 1.0, -4.0, 0.0], [0.5, 1.0, -4.0, 0.0], [0.5, 0.25, -4.0, 0.0]]
    for row in range(3):
        scores = torch.tensor(expected[row]).log_softmax(-1)
        assert abs(float(scores[ids[row]]) - logprobs[row]) < 1e-6
    greedy = SamplingColumns.of(np.zeros(1, np.float32), np.zeros(1, np.uint64))
    greedy.put(0, 0.0, 3, SamplingFilters(repetition_penalty=4.0, top_k=1, min_p=1.0))
    ids, logprobs = sample(logits, greedy.rows(np.zeros(3, np.int64)), np.arange(2, 5), contexts)
    assert ids.tolist() == [0, 1, 0]
    # Greedy rows have the log-prob of the whole distribution.
    assert np.allclose(logprobs, [torch.tensor(row).log_softmax(-1).max() for row in expected])


def test_rows_of_several_parts_are_filtered_alike(monkeypatch: pytest.MonkeyPatch):
    logits = torch.randn(7, 30, generator=torch.Generator().manual_seed(1))
    rows = SamplingColumns.of(np.ones(7, np.float32), np.arange(7, dtype=np.uint64))
    for row in (0, 1, 2, 4, 5, 6):
        rows.put_filters(row, SamplingFilters(top_k=row + 2, top_p=0.8))
    whole = sample(logits, rows, np.arange(7))
    monkeypatch.setattr(filters_module, "SORTED_ELEMENTS", 61)
    for ours, expected in zip(sample(logits, rows, np.arange(7)), whole, strict=True):
        assert ours.tobytes() == expected.tobytes()
