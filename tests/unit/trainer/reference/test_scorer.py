"""Scores of a reward model: transformers' own, to 1e-5, and bits that do not depend on the company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from earl.config.run import RunConfig
from earl.errors import FragmentError
from earl.models.parallel import TensorParallel
from earl.models.scorer import load_scorer_spec
from services.trainer.reference.policy import MaskedTrajectory
from services.trainer.reference.scorer import FrozenScorer
from tests.support.scorer import SCORER, write_scorer

FAMILIES = ("llama", "qwen2", "qwen3")


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("scorers")
    return {
        family: write_scorer(root / family, SCORER.model_copy(update={"family": family}))
        for family in FAMILIES
    }


def scorer(directory: Path, *, tokens: int = 64, deterministic: bool = False) -> FrozenScorer:
    run: dict[str, Any] = {
        "name": "t", "environment": {"name": "e"}, "model": {"dtype": "float32"},
        "reward_model": {"path": str(directory), "microbatch_tokens": tokens}, "deterministic": deterministic,
    }  # fmt: skip
    config = RunConfig.model_validate(run)
    spec, device = load_scorer_spec(directory), torch.device("cpu")
    made = FrozenScorer(spec, TensorParallel(), device, config, "reward_model")
    made.fill(directory)
    return made


def trajectories(vocabulary: int, count: int = 9) -> list[MaskedTrajectory]:
    """Two of three begin with the same prompt. The last token is never a pad token, which is 0."""
    rng = np.random.default_rng(4)
    prompt = rng.integers(1, vocabulary, 14)
    made = []
    for number in range(count):
        tokens = rng.integers(1, vocabulary, int(rng.integers(2, 24)))
        if number % 3:
            tokens = np.concatenate((prompt, tokens))
        mask = (np.arange(len(tokens)) >= len(tokens) - 1).astype(np.uint8)
        made.append(MaskedTrajectory(f"t/{number}", tokens.astype(np.int32), mask))
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_transformers(directories: dict[str, Path], family: str) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(directories[family], dtype=torch.float32)
    assert model.config.num_labels == 1
    given = trajectories(model.config.vocab_size)
    with torch.no_grad():
        expected = [
            float(model(torch.from_numpy(each.tokens.astype(np.int64))[None]).logits[0, 0]) for each in given
        ]
    assert np.std(expected) > 0.1
    for tokens in (64, 4096):
        scores = scorer(directories[family], tokens=tokens).scores(given)
        assert scores.dtype == np.float32
        np.testing.assert_allclose(scores, expected, atol=1e-5, rtol=1e-5)


def test_deterministic_bits_do_not_depend_on_the_company(directories: dict[str, Path]) -> None:
    stage = scorer(directories["llama"], deterministic=True)
    given = trajectories(stage.spec.vocab)
    together = stage.scores(given)
    assert [stage.scores([each])[0] for each in given] == together.tolist()
    assert stage.scores(given[::-1])[::-1].tolist() == together.tolist()


def test_a_score_that_is_not_finite_names_role_and_column(directories: dict[str, Path]) -> None:
    stage = scorer(directories["llama"])
    assert stage._head is not None
    stage._head[0] = torch.nan
    with pytest.raises(FragmentError, match=r"role reward_model gives t/0 the score nan: the column score"):
        stage.scores(trajectories(stage.spec.vocab))
