"""Coverage by a history, and what its drafts allow, against answers worked out by hand."""

import numpy as np
import pytest
import torch

from benchmarks.history.texts import accepted_and_steps, coverage, records, reference
from benchmarks.history.ties import first_difference, to_boundary
from services.rollout.engines.contract.sampling import sample, uniforms
from services.rollout.engines.contract.sampling_columns import SamplingColumns


def test_coverage_counts_tokens_in_matches_of_seven():
    answer = list(range(20))
    assert coverage(answer, [answer]) == 1.0
    assert coverage(answer, [answer[:7]]) == pytest.approx(7 / 20)
    # Two matches that overlap count once; six tokens are no match.
    assert coverage(answer, [answer[:7], answer[5:12]]) == pytest.approx(12 / 20)
    assert coverage(answer, [answer[:6]]) == 0.0
    assert coverage([], [answer]) == 0.0


def test_an_answer_that_stands_there_takes_one_step_for_each_window():
    prompt, answer = [1, 2, 3, 4], list(range(100, 125))
    known = [reference([*prompt, *answer])]
    # 25 tokens in steps of one sampled and four drafted ones.
    assert accepted_and_steps(prompt, answer, known, 4) == (20, 5)
    assert accepted_and_steps(prompt, answer, known, 0) == (0, len(answer))
    assert accepted_and_steps(prompt, answer, [reference([7, 8, 9])], 4) == (0, len(answer))


def test_lists_are_of_their_seed():
    assert records(3) == records(3) != records(4)


def test_answers_differ_first_where_they_do():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) is None


def test_a_near_tie_is_one_whose_draw_lies_at_a_boundary():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 40, generator=generator)
    seed, temperature = 5, 0.7
    columns = SamplingColumns.of(np.array([temperature], dtype=np.float32), np.array([seed], dtype=np.uint64))
    [token], _ = sample(logits, columns, np.array([3]))
    draw = float(uniforms(np.array([seed], dtype=np.uint64), np.array([3]))[0])
    cumulative = (logits[0].double() / temperature).softmax(-1).cumsum(-1).numpy()
    low, high = cumulative[token - 1], cumulative[token]
    assert low < draw < high
    # The neighbour's interval ends where the token's begins.
    wanted = min(draw - low, high - draw, draw - cumulative[token - 2])
    distance = to_boundary(logits[0], 3, (int(token), int(token) - 1), temperature, seed)
    assert distance == pytest.approx(wanted)
