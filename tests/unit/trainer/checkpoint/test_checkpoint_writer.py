"""Checkpoints that are written while training goes on: what they hold, and when they count."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from earl.errors import CheckpointError
from services.trainer.checkpoint import checkpoint, writer
from services.trainer.checkpoint.tensor_file import write_tensors
from services.trainer.checkpoint.writer import CheckpointWriter
from services.trainer.model.adapters import hash_of
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


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files are written once it is set, and no test leaves a thread that waits for it."""
    made = threading.Event()

    def write(*arguments):
        made.wait()
        return write_tensors(*arguments)

    monkeypatch.setattr(writer, "write_tensors", write)
    yield made
    made.set()


def begin(made: CheckpointWriter, stepper: Stepper, version: int) -> None:
    made.begin(stepper, progress_at(stepper, version), "hash")


def test_a_checkpoint_holds_the_state_in_which_it_began(
    group: Group, stepper: Stepper, tmp_path: Path, gate: threading.Event
) -> None:
    made = CheckpointWriter(tmp_path / "c", group, 2)
    train(stepper, 1)
    begin(made, stepper, 2)
    # Training goes on before a byte is written, and until then there is no checkpoint.
    train(stepper, 2)
    assert made.in_flight and made.poll() is None
    assert checkpoint.latest(tmp_path / "c", stepper, group) is None
    gate.set()
    written = made.settle()
    assert written is not None and not made.in_flight and made.settle() is None
    assert written.progress.version == 2
    resumed = stepper_for(group, tmp_path / "model", stepper.config)
    latest = checkpoint.latest(tmp_path / "c", resumed, group)
    assert latest is not None and latest[0] == written.path
    checkpoint.load(*latest, resumed)
    train(resumed, 2)
    expected = gathered(stepper)
    for name, tensor in gathered(resumed).items():
        assert torch.equal(tensor, expected[name]), name


def test_a_poll_ends_what_was_written_meanwhile(group: Group, stepper: Stepper, tmp_path: Path) -> None:
    made = CheckpointWriter(tmp_path / "c", group, 2)
    begin(made, stepper, 2)
    while (written := made.poll()) is None:
        pass
    assert written.path == tmp_path / "c" / "step-2" and made.poll() is None


def test_one_that_was_in_flight_when_the_trainer_ended_is_none(
    group: Group, stepper: Stepper, tmp_path: Path, gate: threading.Event
) -> None:
    gate.set()
    made = CheckpointWriter(tmp_path / "c", group, 1)
    begin(made, stepper, 2)
    made.settle()
    begin(made, stepper, 3)
    # Killed when its file was written, and the manifest was not.
    assert made._writing is not None and made._writing.done.wait(60)
    latest = checkpoint.latest(tmp_path / "c", stepper, group)
    assert latest is not None and latest[0].name == "step-2"
    # What it left goes with the next one.
    resumed = CheckpointWriter(tmp_path / "c", group, 1)
    begin(resumed, stepper, 4)
    resumed.settle()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["step-4"]


def test_a_failure_to_write_is_told_and_leaves_the_older_one(
    group: Group, stepper: Stepper, tmp_path: Path, gate: threading.Event
) -> None:
    gate.set()
    made = CheckpointWriter(tmp_path / "c", group, 1)
    begin(made, stepper, 2)
    made.settle()
    gate.clear()
    begin(made, stepper, 3)
    shutil.rmtree(tmp_path / "c" / ".step-3.partial")
    gate.set()
    with pytest.raises(CheckpointError, match=r"no checkpoint was written: .*step-3\.partial"):
        made.settle()
    assert not made.in_flight
    latest = checkpoint.latest(tmp_path / "c", stepper, group)
    assert latest is not None and latest[0].name == "step-2"


def test_without_memory_for_a_copy_it_is_written_at_once(
    group: Group, stepper: Stepper, tmp_path: Path
) -> None:
    made = CheckpointWriter(tmp_path / "c", group, 1, free_bytes=lambda: 0)
    before = threading.active_count()
    begin(made, stepper, 2)
    assert made._writing is not None and made._writing.done.is_set() and threading.active_count() == before
    assert made.poll() is not None


def test_a_file_is_what_safetensors_reads_and_its_hash_that_of_its_bytes(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(3, 5), "a": torch.randn(2 << 20), "c": torch.randn(4, 4).t()}
    name, size_bytes, xxh3 = write_tensors(tmp_path / "x.safetensors", tensors)
    path = tmp_path / name
    assert (size_bytes, xxh3) == (path.stat().st_size, hash_of(path))
    read = load_file(path)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[key], tensor) for key, tensor in tensors.items())
