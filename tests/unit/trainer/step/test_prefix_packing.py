"""Checks which sequences share a forward pass, and what of them is computed once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from earl.models.module import Decoder
from earl.models.packing import Packing, causal_attention
from earl.models.spec import load_spec
from earl.models.weights import load_decoder
from services.trainer.step.prefix_packing import SHORTEST_SHARED, bins, pack, rows_of
from tests.support.policy import VOCABULARY, model_directory

# A sequence: which of few prompts it has, how much of that, and tokens of its own.
SEQUENCES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 24), st.lists(st.integers(0, 1), min_size=1, max_size=20)),
    min_size=1,
    max_size=12,
)


def _sequences(drawn) -> list[tuple[np.ndarray, int]]:
    """(tokens, position of the first trained one) of each. Prompts 1 and 2 begin alike."""
    prompts = [np.zeros(24), np.ones(24), np.r_[np.ones(11), np.zeros(13)]]
    return [(np.r_[prompts[which][:length], own].astype(np.int32), length) for which, length, own in drawn]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 80))
def test_pack_places_each_sequence_once_within_capacity(lengths: list[int], capacity: int) -> None:
    bins = pack(lengths, capacity)
    assert sorted(i for b in bins for i in b) == list(range(len(lengths)))
    for b in bins:
        assert sum(lengths[i] for i in b) <= capacity or len(b) == 1
    # First fit: no two bins fit into one.
    loads = sorted(sum(lengths[i] for i in b) for b in bins)
    assert len(loads) < 2 or loads[0] + loads[1] > capacity


@given(SEQUENCES, st.integers(1, 120), st.booleans())
def test_bins_hold_each_sequence_once_and_share_only_what_is_common(
    drawn, capacity: int, share: bool
) -> None:
    sequences = _sequences(drawn)
    found = bins(
        range(len(sequences)), lambda i: sequences[i][0], lambda i: sequences[i][1], capacity, share=share
    )
    assert sorted(i for one in found for i in one.chosen) == list(range(len(sequences)))
    for one in found:
        assert sum(len(sequences[i][0]) for i in one.chosen) <= capacity or len(one.chosen) == 1
        assert one.shared[0] == 0
        for before, here, shared in zip(one.chosen, one.chosen[1:], one.shared[1:], strict=False):
            tokens, trained = sequences[here]
            # The row before the first trained token is the sequence's own: it predicts.
            assert shared == 0 or (share and SHORTEST_SHARED <= shared < trained)
            np.testing.assert_array_equal(tokens[:shared], sequences[before][0][:shared])


def test_answers_to_one_prompt_compute_it_once() -> None:
    prompt = np.arange(20, dtype=np.int32)
    sequences = [np.r_[prompt, np.full(k + 1, 99)].astype(np.int32) for k in range(4)]
    sequences.insert(2, np.r_[np.arange(15), 7, 7].astype(np.int32))
    trained = [len(prompt), len(prompt), 16, len(prompt), len(prompt)]
    (found,) = bins(range(5), sequences.__getitem__, trained.__getitem__, 1000)
    computed = sum(len(sequences[i]) for i in found.chosen) - sum(found.shared)
    # The other prompt sorts first; the first answer shares 15 tokens with it, the others 19 with that.
    assert found.shared == [0, 15, 19, 19, 19]
    assert computed == 17 + (21 - 15) + (22 - 19) + (23 - 19) + (24 - 19)


@given(SEQUENCES)
def test_rows_are_what_no_earlier_sequence_has(drawn) -> None:
    sequences = _sequences(drawn)
    (found,) = bins(range(len(sequences)), lambda i: sequences[i][0], lambda i: sequences[i][1], 1 << 30)
    lengths = [len(sequences[i][0]) for i in found.chosen]
    rows = rows_of(lengths, found.shared)
    places, positions, starts = [], [], np.cumsum(lengths) - lengths
    for start, length, shared in zip(starts, lengths, found.shared, strict=True):
        places += range(start + shared, start + length)
        positions += range(shared, length)
    np.testing.assert_array_equal(rows.places, places)
    np.testing.assert_array_equal(rows.positions, positions)
    for start, length, first in zip(starts, lengths, rows.first, strict=True):
        np.testing.assert_array_equal(rows.places[first + length - 1], start + length - 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_over_shared_rows_is_attention_over_copies(dtype: torch.dtype) -> None:
    """Outputs and gradients, with grouped heads and a tree of two levels."""
    lengths, shared = [20, 23, 23, 12], [0, 9, 15, 9]
    rows = rows_of(lengths, shared)
    plain = Packing.of(lengths, torch.device("cpu"))
    tree = Packing.of(lengths, torch.device("cpu"), shared)
    generator = torch.Generator().manual_seed(0)
    total = len(rows.places)
    inputs = [torch.randn(total, heads, 8, generator=generator).to(dtype) for heads in (4, 2, 2)]
    # Where each token of each sequence lies among the packed rows, found the slow way.
    at: list[int] = []
    before: list[int] = []
    row = 0
    for length, head in zip(lengths, shared, strict=True):
        before = before[:head] + list(range(row, row + length - head))
        at += before
        row += length - head
    copies = torch.tensor(at)
    weights = torch.randn(total, 4, 8, generator=generator).to(dtype)

    def gradients(packing: Packing, index: torch.Tensor | None) -> list[torch.Tensor]:
        leaves = [one.clone().requires_grad_() for one in inputs]
        used = leaves if index is None else [one[index] for one in leaves]
        out = causal_attention(used[0], used[1], used[2], packing)
        out = out if index is None else out[torch.from_numpy(rows.places)]
        return [out, *torch.autograd.grad((out * weights).sum(), leaves)]

    bound = 1e-5 if dtype is torch.float32 else 0.05
    for ours, expected in zip(gradients(tree, None), gradients(plain, copies), strict=True):
        torch.testing.assert_close(ours, expected, atol=bound, rtol=bound)


def test_hidden_states_are_those_of_each_sequence_alone(tmp_path: Path) -> None:
    model = model_directory(tmp_path)
    decoder = Decoder(load_spec(model))
    load_decoder(decoder, model)
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(VOCABULARY, (13,), generator=generator)
    whole = [torch.cat((prompt, torch.randint(VOCABULARY, (n,), generator=generator))) for n in (3, 9, 1)]
    lengths, shared = [len(one) for one in whole], [0, 12, 12]
    rows = rows_of(lengths, shared)
    tokens = torch.cat(whole)[torch.from_numpy(rows.places)]
    packed = decoder.forward_packed(tokens, torch.from_numpy(rows.positions), lengths, shared)
    alone = torch.cat([decoder.forward_packed(one, torch.arange(len(one)), [len(one)]) for one in whole])
    torch.testing.assert_close(packed, alone[torch.from_numpy(rows.places)], atol=1e-5, rtol=1e-4)
