"""The progress of an export, by the files that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from earl.cli.lib import export_progress as module
from earl.cli.lib.export_progress import export_progress
from earl.models.partial import partial_path, partial_paths
from earl.models.spec import spec_of
from tests.support.runs import tictactoe

LLAMA = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 128, "rope_theta": 1e4, "tie_word_embeddings": True,
}  # fmt: skip
PARAMETERS = spec_of(LLAMA).parameters


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's directory with the configuration of a model. A MB is a byte here."""
    monkeypatch.setattr(module, "MB", 1)
    directory = tmp_path / "run"
    (directory / "model").mkdir(parents=True)
    (directory / "model" / "config.json").write_text(json.dumps(LLAMA))
    config = tictactoe(tmp_path, model={"dtype": "float32"})
    (directory / "run.json").write_text(config.model_dump_json())
    return directory


def test_what_is_on_disk_counts_whichever_process_writes_it(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "exported"
    progress = export_progress(to, run)
    assert progress() == (0, 4 * PARAMETERS)
    partial = partial_path(to, 1234)
    partial.mkdir()
    (partial / "shard-0").write_bytes(bytes(300))
    (partial / "config.json").write_bytes(bytes(50))
    assert progress() == (350, 4 * PARAMETERS)
    (partial / "shard-1").write_bytes(bytes(4 * PARAMETERS))
    assert progress() == (4 * PARAMETERS, 4 * PARAMETERS)
    assert export_progress(tmp_path / "other", run, "bfloat16")() == (0, 2 * PARAMETERS)


def test_what_a_killed_export_left_does_not_count(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "exported"
    left = partial_path(to, 1)
    left.mkdir()
    (left / "shard-0").write_bytes(bytes(300))
    assert list(partial_paths(to)) == [left]
    assert export_progress(to, run)() == (0, 4 * PARAMETERS)


def test_nothing_is_counted_where_the_size_is_not_known(run: Path, tmp_path: Path) -> None:
    assert export_progress(tmp_path / "exported", run, "float8")() == (0, 0)
    assert export_progress(tmp_path / "exported", tmp_path / "no run")() == (0, 0)
