"""The facts of a card, on this processor: every line but CUDA's own calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gpu import arenas, facts
from benchmarks.gpu.check import CheckFailed, CheckSettings, judged


@pytest.fixture
def settings(tmp_path: Path) -> CheckSettings:
    return CheckSettings("cpu", 1, "least", tmp_path, tmp_path)


def test_copies_and_casts_agree(settings: CheckSettings):
    figures = facts.copies(settings).figures
    assert figures["published_cast_on_card_gb_s"] > 0 and figures["to_host_pinned_gb_s"] > 0


def test_each_kernel_has_a_time_or_none(settings: CheckSettings):
    rows = {name: row for name, row in facts.attention_backends(settings).figures.items() if "gqa" in name}
    assert len(rows) == 6
    for row in rows.values():
        assert row["math"] > 0 and row["default"] > 0 and row["efficient"] is None


def test_another_process_reads_what_a_device_has_written(settings: CheckSettings):
    assert arenas.arena_from_card(settings).figures["registered_gb_s"] > 0
    assert list((settings.arenas / "facts").glob("*")) == []


def test_a_rule_that_is_broken_has_the_figures():
    with pytest.raises(CheckFailed) as failed:
        judged({"a": 1}, {"a": 0}, {"a is 1": True, "b is 2": True})
    assert str(failed.value) == "a is 1; b is 2" and failed.value.figures == {"a": 1}
