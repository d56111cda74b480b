"""The packaged pace tables are what their formulae and the paper's figure give."""

from __future__ import annotations

import csv

import pytest

from benchmarks.paper.fig3 import PAPER, RESPONSES
from earl.csv_text import text_of
from earl.pacing.table import PaceTable
from tools import pace_tables


@pytest.mark.parametrize("name", pace_tables.TEXTS)
def test_a_packaged_table_is_what_its_formula_writes(name):
    path = pace_tables.TABLES / f"{name}.csv"
    assert path.read_text(encoding="utf-8") == text_of(pace_tables.COLUMNS, pace_tables.TEXTS[name]())


def test_fig3_has_the_papers_ratios_and_its_cell_out_of_memory():
    rows = list(csv.DictReader((pace_tables.TABLES / "fig3.csv").open(encoding="utf-8")))
    rates = {(row["tp"], int(row["context_tokens"]), int(row["concurrency"])): row for row in rows}
    for context, ratios in PAPER.items():
        for responses, ratio in zip(RESPONSES, ratios, strict=True):
            tp4, tp8 = (rates[tp, context, responses] for tp in ("4", "8"))
            if ratio is None:
                assert tp4["tokens_per_device_s"] == "oom"
                continue
            percent = (float(tp8["tokens_per_device_s"]) / float(tp4["tokens_per_device_s"]) - 1) * 100
            assert percent == pytest.approx(ratio, abs=0.1)
            assert str(ratio) in tp8["source"]
    table = PaceTable.parse((pace_tables.TABLES / "fig3.csv").read_text(encoding="utf-8"), "fig3")
    assert not table.fits("rollout", (4, 1, 1), 32768, 64)
    assert table.fits("rollout", (4, 1, 1), 32768, 32)
    assert table.fits("rollout", (8, 1, 1), 32768, 128)


def test_slow_link_gives_small_tp_its_speed_and_large_tp_its_memory():
    table = PaceTable.parse((pace_tables.TABLES / "slow-link.csv").read_text(encoding="utf-8"), "slow-link")
    longest = [table.longest("rollout", (tp, 1, 1)) for tp in (1, 2, 4)]
    assert longest == [192, 384, float("inf")]
    # 64 sequences in the pool, of a length that every layout holds: smaller engines are faster.
    steps = [table.step_s("rollout", (tp, 1, 1), 64, 16 * tp) for tp in (1, 2, 4)]
    assert steps == sorted(steps)
    trained = [1 / table.token_s("trainer", (1, cp, 1), 64, 16) / cp for cp in (1, 2, 4)]
    assert trained == sorted(trained, reverse=True)
