"""A profile's parallelisms without memory fractions are weighed by the memory model."""

import json
from pathlib import Path

import pytest

from earl.parallelism import Parallelism
from services.scheduler.parallelism.selector_loop import memory_of
from services.scheduler.profile.rows import ProfileRow
from services.scheduler.profile.table import ProfileTable
from tests.support.runs import tictactoe

DP2, TP2 = Parallelism(2), Parallelism(1, 2)
MEASURED = ProfileRow("rollout", DP2, 1024, 8, 100.0, 0.5)
BLANK = ProfileRow("rollout", TP2, 1024, 8, 80.0)


def by_tokens(one: Parallelism, context_tokens: float, concurrency: float) -> float:
    return context_tokens * concurrency / one.tp / 16_384


def test_rows_without_fractions_are_weighed_by_the_model():
    table = ProfileTable([MEASURED, BLANK], "rollout", by_tokens)
    assert table.predict(TP2, 1024, 8).memory_fraction == 0.25
    full = table.predict(TP2, 4096, 16)
    assert not full.fits and full.memory_fraction == 2.0 and "200%" in full.reason
    assert full.tokens_per_device_s > 0


def test_measured_fractions_count_more_than_the_model():
    table = ProfileTable([MEASURED, BLANK], "rollout", lambda *_: 7.0)
    assert table.predict(DP2, 1024, 8).memory_fraction == 0.5
    assert not table.predict(TP2, 1024, 8).fits


def test_a_model_that_cannot_say_changes_nothing():
    table = ProfileTable([BLANK], "rollout", lambda *_: None)
    assert table.predict(TP2, 1024, 8) == ProfileTable([BLANK], "rollout").predict(TP2, 1024, 8)


def test_what_the_profile_measured_as_oom_stays_so():
    oom = ProfileRow("rollout", TP2, 2048, 8, None, oom=True)
    table = ProfileTable([BLANK, oom], "rollout", lambda *_: 0.1)
    found = table.predict(TP2, 2048, 8)
    assert not found.fits and "by the profile" in found.reason and found.memory_fraction == 0.1


@pytest.mark.parametrize(("device", "known"), [("cpu", True), ("cuda", False)])
def test_the_runs_own_model_grows_with_the_context(tmp_path: Path, device: str, known: bool):
    config = tictactoe(tmp_path, rollout={"device": device})
    (tmp_path / "model").mkdir()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
    (tmp_path / "model" / "config.json").write_text(
        json.dumps({"model_type": "llama", "intermediate_size": 64, "num_key_value_heads": 2, **sizes})
    )
    model = memory_of(config, tmp_path, "rollout")
    short, long = model(DP2, 64, 4), model(DP2, 65_536, 64)
    if not known:
        assert short is None and long is None
        return
    assert short is not None and long is not None and 0 < short < long
