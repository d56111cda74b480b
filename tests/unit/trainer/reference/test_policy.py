"""Reference log-probs of one process: against the decoder itself, bit for bit where that is promised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from earl.config.column_bytes import check_frozen_stages, column_bytes
from earl.config.model import ScratchModel
from earl.config.run import RunConfig
from earl.dispatch.layout.box import Layout, ShardBox
from earl.errors import CheckpointError, ConfigError, OutOfMemory, TrainerError
from earl.models.module import Decoder
from earl.models.parallel import TensorParallel
from earl.models.spec import load_spec
from earl.models.weights import load_decoder
from services.trainer.reference.origin import Origin, parts
from services.trainer.reference.policy import MaskedTrajectory, ReferencePolicy, slices, trainable
from tests.support.memory_bound import no_more_than
from tests.support.policy import model_directory
from tests.support.runs import tictactoe

TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return model_directory(tmp_path_factory.mktemp("reference"))


def policy(directory: Path, *, microbatch_tokens: int = 64, deterministic: bool = False) -> ReferencePolicy:
    sections = {
        "scheduler": {"temperature": TEMPERATURE},
        "reference": {"microbatch_tokens": microbatch_tokens},
    }
    run = {"name": "t", "environment": {"name": "e"}, "model": {"dtype": "float32"}, **sections}
    config = RunConfig.model_validate(run | {"deterministic": deterministic})
    made = ReferencePolicy(load_spec(directory), TensorParallel(), torch.device("cpu"), config)
    made.fill(directory)
    return made


def trajectories(vocabulary: int, count: int = 7, seed: int = 0, longest: int = 39) -> list[MaskedTrajectory]:
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        length = int(rng.integers(2, longest + 1))
        mask = (rng.random(length) < 0.5).astype(np.uint8)
        mask[0] = 0
        made.append(
            MaskedTrajectory(f"t/{number}", rng.integers(0, vocabulary, length).astype(np.int32), mask)
        )
    return made


def computed(stage: ReferencePolicy, given: list[MaskedTrajectory]) -> list[np.ndarray]:
    """Sequence by sequence, from two slices of all of them laid end to end."""
    ends = np.cumsum([len(one.tokens) for one in given])
    into = np.full(ends[-1], np.nan, np.float32)
    for box in slices(np.concatenate([one.loss_mask for one in given]), 2):
        stage.logprobs(given, box, into[box.slices()])
    return np.split(into, ends[:-1])


def test_equal_to_the_decoder_itself(directory: Path):
    spec = load_spec(directory)
    decoder = Decoder(spec)
    load_decoder(decoder, directory)
    given = trajectories(spec.vocab)
    for one, values in zip(given, computed(policy(directory), given), strict=True):
        tokens = torch.from_numpy(one.tokens.astype(np.int64))
        with torch.no_grad():
            hidden = decoder.forward_packed(tokens, torch.arange(len(tokens)), [len(tokens)])
            whole = torch.log_softmax(decoder.logits(hidden) / TEMPERATURE, -1)
        expected = np.zeros(len(tokens), np.float32)
        expected[1:] = whole[:-1].gather(-1, tokens[1:, None]).squeeze(-1).numpy()
        np.testing.assert_allclose(values, expected * one.loss_mask, atol=1e-5)


def test_deterministic_bits_do_not_depend_on_the_company(directory: Path):
    stage = policy(directory, deterministic=True)
    # Few trained tokens each: products of so few rows have bits of their own.
    given = trajectories(stage.spec.vocab, 9, longest=6)
    together = computed(stage, given)
    for one, values in zip(given, together, strict=True):
        assert computed(stage, [one])[0].tobytes() == values.tobytes()
    backwards = computed(stage, given[::-1])[::-1]
    assert [values.tobytes() for values in backwards] == [values.tobytes() for values in together]


def test_a_damaged_policy_is_refused(directory: Path):
    stage = policy(directory)
    with torch.no_grad():
        stage.decoder.model.norm.weight.fill_(float("nan"))
    with pytest.raises(TrainerError, match="not finite"):
        computed(stage, trajectories(stage.spec.vocab))


@given(
    mask=arrays.arrays(np.uint8, st.integers(1, 60), elements=st.integers(0, 1)),
    ranks=st.integers(1, 5),
)
def test_slices_cover_a_sequence_once_with_equally_many_trained_tokens(mask: np.ndarray, ranks: int):
    boxes = slices(mask, ranks)
    layout = Layout(
        "reference", "float32", mask.shape, tuple(ShardBox(str(i), box) for i, box in enumerate(boxes))
    )
    layout.validate()
    counts = [int(mask[box.slices()].sum()) for box in boxes]
    assert sum(counts) == int(mask.sum())
    assert max(counts) <= -(-int(mask.sum()) // ranks)


@pytest.mark.parametrize(
    ("tokens", "mask", "usable"),
    [([1, 2], [0, 1], True), ([1, 9], [0, 1], False), ([1, -1], [0, 1], False), ([1, 2], [1, 1], False),
     ([1, 2], [0, 2], False)],
)  # fmt: skip
def test_columns_that_no_rollout_wrote_are_not_computed_with(
    tokens: list[int], mask: list[int], usable: bool
):
    one = MaskedTrajectory("t", np.array(tokens, np.int32), np.array(mask, np.uint8))
    assert trainable(one, 9) is usable


def test_the_origin_is_the_model_that_was_given_or_what_warm_up_ended_with(tmp_path: Path):
    run_dir = tmp_path / "run"
    (run_dir / "model").mkdir(parents=True)
    given = Origin.of(tictactoe(tmp_path, warmup={"batches": 0}), run_dir)
    assert (given.version, given.kept, given.void(1)) == (1, True, False)
    given.forget()
    assert given.kept
    origin = Origin.of(tictactoe(tmp_path, warmup={"batches": 3}), run_dir)
    assert (origin.version, origin.kept) == (4, False)
    assert origin.void(1) and origin.void(3) and not origin.void(4) and not origin.void(0)
    origin.refuse_missed(4)
    with pytest.raises(CheckpointError, match="version 4, which the KL is measured against, was never kept"):
        origin.refuse_missed(5)
    origin.directory.mkdir(parents=True)
    origin.refuse_missed(5)
    origin.forget()
    assert not origin.kept


def test_tensors_are_read_in_parts_of_bounded_size():
    assert list(parts({"a": 5, "b": 5, "c": 30, "d": 1, "e": 9}, 10)) == [["a", "b"], ["c"], ["d", "e"]]
    assert list(parts({}, 10)) == []


def test_an_arena_that_could_never_hold_what_waits_is_refused(tmp_path: Path):
    def run(**reference: int):
        return tictactoe(tmp_path, trainer={"kl_coefficient": 0.1}, reference=reference)

    needed = column_bytes(run(), run().rollout.max_context_tokens)
    check_frozen_stages(run())
    check_frozen_stages(run(arena_bytes=needed))
    with pytest.raises(ConfigError, match=r"reference\.arena_bytes = \d+ cannot hold"):
        check_frozen_stages(run(arena_bytes=needed - 1))
    check_frozen_stages(tictactoe(tmp_path, reference={"arena_bytes": 1}))


# --- memory ---------------------------------------------------------------------------------

WIDE = ScratchModel(hidden_size=128, intermediate_size=1024, layers=1, heads=4, kv_heads=4)
TOKENS = 1 << 13
MIB = 1 << 20


def whole(reference: ReferencePolicy, sequences: list[MaskedTrajectory]) -> np.ndarray:
    box = slices(np.concatenate([sequence.loss_mask for sequence in sequences]), 1)[0]
    into = np.empty(box.size, np.float32)
    reference.logprobs(sequences, box, into)
    return into


def test_a_pass_without_memory_is_repeated_in_smaller_parts(tmp_path: Path) -> None:
    directory = model_directory(tmp_path, WIDE)
    free, bounded = (policy(directory, microbatch_tokens=TOKENS) for _ in range(2))
    many = trajectories(free.spec.vocab, 400)
    tokens, mask = np.zeros((2, 4 * TOKENS), np.int32)
    long = MaskedTrajectory("long", tokens, (mask + 1).astype(np.uint8))
    long.loss_mask[0] = 0
    whole(bounded, many[:2])
    with no_more_than(16 * MIB):
        values = whole(bounded, many)
        with pytest.raises(OutOfMemory, match=r"lower reference\.microbatch_tokens"):
            whole(bounded, [long])
    np.testing.assert_allclose(values, whole(free, many), atol=1e-5)
    np.testing.assert_allclose(whole(bounded, many[:9]), whole(free, many[:9]), atol=1e-5)
