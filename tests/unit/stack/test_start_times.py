"""Start times are kept by model, in the cache; a cache that holds nonsense, or cannot be written, is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from earl.config.model import ModelConfig
from earl.stack.start_times import StartTimes

TAKEN = {"model": 27.25, "trainer": 31.0}


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EARL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "starts"


def test_a_start_is_remembered_for_the_same_model_alone(starts: Path):
    assert StartTimes(ModelConfig(path="a")).last() == {}
    StartTimes(ModelConfig(path="a")).keep({"model": 1.0})
    StartTimes(ModelConfig(path="a")).keep(TAKEN)
    assert StartTimes(ModelConfig(path="a")).last() == TAKEN
    assert StartTimes(ModelConfig(path="b")).last() == {}


def test_what_is_no_time_is_left_out(starts: Path):
    StartTimes(ModelConfig(path="a")).keep(TAKEN)
    [file] = starts.iterdir()
    file.write_text('{"model": "long", "trainer": 4, "gateway": -1, "rollout-0": NaN}')
    assert StartTimes(ModelConfig(path="a")).last() == {"trainer": 4.0}
    file.write_text("[")
    assert StartTimes(ModelConfig(path="a")).last() == {}


def test_a_cache_that_cannot_be_written_ends_nothing(starts: Path, caplog: pytest.LogCaptureFixture):
    starts.parent.write_text("a file")
    StartTimes(ModelConfig(path="a")).keep(TAKEN)
    assert "cannot be written" in caplog.text and StartTimes(ModelConfig(path="a")).last() == {}
