"""Three gloo ranks under torchrun against one: equal steps, and checkpoints in both directions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from services.trainer import checkpoint
from services.trainer.group import Group
from services.trainer.saved import SavedModel
from services.trainer.step import Stepper
from tests.support.policy import (
    ADAPTED_CONFIG,
    RANKS_CONFIG,
    configuration,
    gathered,
    model_directory,
    progress_at,
    stepper_for,
    train,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
RANKS = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank and three ranks made of the same: directory holds the latter's files."""

    directory: Path
    stepper: Stepper
    trained: dict[str, torch.Tensor]
    metrics: dict[str, float]
    continued: dict[str, torch.Tensor]

    def by_three(self, name: str) -> dict[str, torch.Tensor]:
        return load_file(self.directory / f"{name}.safetensors")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    directory = tmp_path_factory.mktemp("ranks")
    torch.set_num_threads(1)
    group = Group("cpu")
    stepper = stepper_for(group, model_directory(directory), configuration(**RANKS_CONFIG))
    metrics = train(stepper, 1)
    trained = gathered(stepper)
    checkpoint.save(directory / "one", stepper, group, progress_at(stepper, 2), "hash", keep=2)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--local-addr=127.0.0.1",
            f"--nproc-per-node={RANKS}",
            "-m",
            "tests.support.policy",
            str(directory),
        ],
        check=True,
        timeout=100,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    train(stepper, 2)
    yield Outcome(directory, stepper, trained, metrics, gathered(stepper))
    group.close()


def _assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-4, msg=name)


def test_ranks_train_what_one_trains(outcome: Outcome) -> None:
    _assert_close(outcome.by_three("trained"), outcome.trained)
    for name, value in outcome.by_three("metrics").items():
        assert float(value) == pytest.approx(outcome.metrics[name], rel=1e-3, abs=1e-5), name


def test_ranks_restore_bitwise_what_one_saved_and_train_on(outcome: Outcome) -> None:
    loaded = outcome.by_three("loaded")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in outcome.trained.items())
    _assert_close(outcome.by_three("continued"), outcome.continued)


def test_one_restores_bitwise_what_ranks_saved_and_trains_on(outcome: Outcome) -> None:
    stepper = outcome.stepper
    found = checkpoint.latest(outcome.directory / "many", stepper, stepper.group)
    assert found is not None
    path, manifest = found
    assert len(manifest.files) == RANKS
    # Uneven cut: of 4 vocabulary rows the last rank holds none.
    assert [part[0] for part in manifest.tensors["model.embed_tokens.weight"].parts] == [0, 1]
    checkpoint.load(path, manifest, stepper)
    by_three = outcome.by_three("trained")
    assert all(torch.equal(tensor, by_three[name]) for name, tensor in gathered(stepper).items())
    train(stepper, 2)
    _assert_close(gathered(stepper), outcome.continued)


def test_what_ranks_saved_is_exported_whole(outcome: Outcome) -> None:
    saved = SavedModel(outcome.directory / "many" / "step-2", outcome.directory / "model")
    by_three = outcome.by_three("trained")
    found = dict(saved.tensors(torch.float32))
    assert found.keys() == by_three.keys()
    assert all(torch.equal(tensor, by_three[name]) for name, tensor in found.items())


def test_ranks_train_and_save_the_adapters_that_one_trains(outcome: Outcome) -> None:
    stepper = stepper_for(outcome.stepper.group, outcome.directory / "model", configuration(**ADAPTED_CONFIG))
    train(stepper, 1)
    train(stepper, 2)
    by_three = outcome.by_three("adapted")
    _assert_close(by_three, gathered(stepper))
    saved = SavedModel(outcome.directory / "adapted" / "step-3", outcome.directory / "model")
    for name, tensor in saved.tensors(torch.float32):
        torch.testing.assert_close(tensor, by_three[name], atol=1e-6, rtol=1e-6, msg=name)
    found = checkpoint.latest(outcome.directory / "adapted", stepper, stepper.group)
    assert found is not None
    checkpoint.load(*found, stepper)
    assert all(torch.equal(tensor, by_three[name]) for name, tensor in gathered(stepper).items())
