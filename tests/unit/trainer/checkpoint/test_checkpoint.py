"""Checkpoints on one rank: whole or skipped, bitwise resume, and what they refuse."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from earl.config.model import ScratchModel
from earl.errors import CheckpointError
from services.trainer.checkpoint import checkpoint
from services.trainer.checkpoint.manifest import FILE, Manifest
from services.trainer.checkpoint.retention import BEST, checkpoints, mark_best
from services.trainer.ranks.process_group import Group
from services.trainer.step.step import Stepper
from tests.support.policy import (
    alone,
    configuration,
    gathered,
    model_directory,
    progress_at,
    stepper_for,
    train,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


group = alone


@pytest.fixture
def stepper(group: Group, tmp_path: Path) -> Stepper:
    return stepper_for(group, model_directory(tmp_path), configuration(minibatches=2))


def _save(stepper: Stepper, directory: Path, version: int, keep: int = 2) -> Path:
    return checkpoint.save(directory, stepper, stepper.group, progress_at(stepper, version), "hash", keep)


def test_resuming_equals_never_having_stopped_bitwise(group: Group, stepper: Stepper, tmp_path: Path) -> None:
    train(stepper, 1)
    path = _save(stepper, tmp_path / "c", 2)
    train(stepper, 2)
    resumed = stepper_for(group, tmp_path / "model", stepper.config)
    found = checkpoint.latest(tmp_path / "c", resumed, group)
    assert found is not None and found[0] == path
    checkpoint.load(*found, resumed)
    assert resumed.optimizer.updates == 2
    train(resumed, 2)
    expected = gathered(stepper)
    for name, tensor in gathered(resumed).items():
        assert torch.equal(tensor, expected[name]), name


def test_the_manifest_says_what_was_consumed(group: Group, stepper: Stepper, tmp_path: Path) -> None:
    progress = progress_at(stepper, 5)
    path = checkpoint.save(tmp_path / "c", stepper, group, progress, "hash", keep=1)
    manifest = Manifest.decode((path / FILE).read_bytes())
    assert manifest.progress == progress
    assert manifest.progress.consumed.ranges == ((1, 50),)
    assert Manifest.decode(manifest.encode()) == manifest
    value = json.loads(manifest.encode())
    assert value["consumed"] == [[1, 50]]
    for ranges in ([[5, 3]], [[-1, 3]], [[1]], 7):
        with pytest.raises(CheckpointError, match="no manifest"):
            Manifest.decode(json.dumps(value | {"consumed": ranges}).encode())


def test_only_the_newest_are_kept_and_a_rolled_back_future_goes(stepper: Stepper, tmp_path: Path) -> None:
    for version in (2, 3, 4, 9):
        _save(stepper, tmp_path / "c", version)
    assert [p.name for p in checkpoints(tmp_path / "c")] == ["step-9", "step-4"]
    _save(stepper, tmp_path / "c", 5)
    assert [p.name for p in checkpoints(tmp_path / "c")] == ["step-5", "step-4"]
    _save(stepper, tmp_path / "c", 5)
    assert sorted(p.name for p in (tmp_path / "c").iterdir()) == ["step-4", "step-5"]


@pytest.mark.parametrize("damage", ["no manifest", "torn manifest", "short file", "no file", "flipped bit"])
def test_what_is_damaged_is_skipped_and_named(
    stepper: Stepper, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    _save(stepper, tmp_path / "c", 2)
    newest = _save(stepper, tmp_path / "c", 3)
    data = newest / "rank-00000.safetensors"
    match damage:
        case "no manifest":
            (newest / FILE).unlink()
        case "torn manifest":
            (newest / FILE).write_bytes((newest / FILE).read_bytes()[:200])
        case "short file":
            data.write_bytes(data.read_bytes()[:-1])
        case "no file":
            data.unlink()
        case "flipped bit":
            content = bytearray(data.read_bytes())
            content[-1] ^= 1
            data.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        found = checkpoint.latest(tmp_path / "c", stepper, stepper.group)
    assert found is not None and found[0].name == "step-2"
    assert str(newest) in caplog.text


def test_a_torn_save_is_no_checkpoint(stepper: Stepper, tmp_path: Path) -> None:
    path = _save(stepper, tmp_path / "c", 2)
    path.rename(path.with_name(".step-2.partial"))
    assert checkpoint.latest(tmp_path / "c", stepper, stepper.group) is None
    assert checkpoint.latest(tmp_path / "never", stepper, stepper.group) is None


def test_nothing_whole_is_an_error_that_names_them(stepper: Stepper, tmp_path: Path) -> None:
    (_save(stepper, tmp_path / "c", 2) / FILE).write_text("{}")
    with pytest.raises(CheckpointError, match="step-2"):
        checkpoint.latest(tmp_path / "c", stepper, stepper.group)


def test_another_models_checkpoint_is_refused(group: Group, stepper: Stepper, tmp_path: Path) -> None:
    path = _save(stepper, tmp_path / "c", 2)
    other = ScratchModel(hidden_size=16, intermediate_size=20, layers=2, heads=2, kv_heads=1)
    foreign = stepper_for(group, model_directory(tmp_path / "other", other), stepper.config)
    with pytest.raises(CheckpointError, match="another model"):
        checkpoint.latest(tmp_path / "c", foreign, group)
    manifest = Manifest.decode((path / FILE).read_bytes())
    with pytest.raises(CheckpointError, match="shape"):
        checkpoint.load(path, manifest, foreign)


def test_what_the_scheduler_holds_stays_and_the_best_is_linked(stepper: Stepper, tmp_path: Path) -> None:
    directory = tmp_path / "c"
    mark_best(directory, 2)
    _save(stepper, directory, 2)
    mark_best(directory, 2)
    for version in (3, 4, 5):
        progress = progress_at(stepper, version)
        checkpoint.save(directory, stepper, stepper.group, progress, "hash", keep=1, held={2, 3})
    assert [p.name for p in checkpoints(directory)] == ["step-5", "step-3", "step-2"]
    assert (directory / BEST).resolve() == directory / "step-2"
    mark_best(directory, 4)  # gone already: the link stays as it was
    assert (directory / BEST).resolve() == directory / "step-2"
    mark_best(directory, 5)
    assert (directory / BEST).readlink() == Path("step-5")
    _save(stepper, directory, 3, keep=1)  # of a rolled-back run: nothing is left to link to
    assert sorted(p.name for p in directory.iterdir()) == ["step-3"]


def test_a_disk_that_fails_leaves_the_older_checkpoint(stepper: Stepper, tmp_path: Path) -> None:
    _save(stepper, tmp_path / "c", 2)
    (tmp_path / "c" / ".step-3.partial").write_text("where the new one's directory should be")
    with pytest.raises(CheckpointError, match="no checkpoint was written"):
        _save(stepper, tmp_path / "c", 3)
    found = checkpoint.latest(tmp_path / "c", stepper, stepper.group)
    assert found is not None and found[0].name == "step-2"


def test_manifests_of_another_format_are_refused() -> None:
    with pytest.raises(CheckpointError, match="format 99"):
        Manifest.decode(json.dumps({"format": 99}).encode())
