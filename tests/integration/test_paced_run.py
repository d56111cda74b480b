"""A whole run on paced devices: real processes whose steps take the time of a table, and it says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.launched import assert_ledger_adds_up, launch_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# Tokens a second and device; tp 1 is out of memory beyond a game's first turns.
RATES = {("rollout", 2, 1): ("20000", "oom"), ("rollout", 1, 2): ("12000", "12000")}
SHORT, LONG = 16, 128
STEPS = 2


def table_in(directory: Path) -> Path:
    """A table with both layouts of two engines, and of no other stage."""
    lines = ["stage,dp,tp,cp,pp,context_tokens,concurrency,tokens_per_device_s"]
    for (stage, dp, tp), rates in RATES.items():
        lines += [
            f"{stage},{dp},{tp},1,1,{tokens},8,{rate}"
            for tokens, rate in zip((SHORT, LONG), rates, strict=True)
        ]
    path = directory / "pace.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_run_on_paced_devices_trains_and_says_that_its_times_are_simulated(tmp_path: Path):
    table = table_in(tmp_path)
    with launch_in(tmp_path, forked=True) as launched:
        sizes = {"rollout__engines": "1", "rollout__tp": "2", "scheduler__steps": str(STEPS)}
        code, figures = launched.start(paced__table=str(table), **sizes).finish()
        assert code == 0, launched.said
        text = "SIMULATED TIMES: rollout on devices paced by pace.csv"
        assert text in launched.said and figures["paced"] == text
        assert_ledger_adds_up(figures)
        assert figures["dropped"] == 0
        metrics = [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").open()]
        steps = [line["paced_steps"] for line in metrics if "paced_steps" in line]
        # As of the workers' heartbeats, which come less often than steps.
        assert steps and steps == sorted(steps) and steps[-1] > 0
        assert 0.0 <= figures["over_pace"] <= 1.0
        assert metrics[-1]["late_steps"] <= steps[-1]
