"""Checks what a run did not measure, each with its reason."""

from __future__ import annotations

from pathlib import Path

from earl.cli.report.page import write_report
from earl.cli.report.sections.missing import not_measured
from earl.config.load import load_run
from tests.support.paths import ROOT
from tests.support.recorded import recorded
from tests.support.report_file import report_data

TICTACTOE = ROOT / "examples" / "tictactoe.toml"
NO_PROFILE = "there was no profile to decide by; `earl profile` measures one."


def test_what_was_not_measured_has_its_reason():
    config = load_run(TICTACTOE)
    assert [one["title"] for one in not_measured(config, [], decided=True)] == [
        "Gain over the first evaluation", "KL to the reference",
    ]  # fmt: skip
    static = load_run(TICTACTOE, [("scheduler.selector", "static"), ("trainer.kl_coefficient", "0.01")])
    [one] = not_measured(static, [{"gain": 0.5}], decided=False)
    assert one == {
        "title": "Parallelism", "reason": 'nothing was decided (scheduler.selector = "static").',
    }  # fmt: skip
    reasons = {
        len(records): not_measured(config, records, decided=True)[0]["reason"] for records in ([{}], [{}, {}])
    }
    assert "no other to compare it with" in reasons[1] and "cannot be paired" in reasons[2]


def test_without_a_profile_nothing_could_be_decided():
    config = load_run(TICTACTOE, [("trainer.kl_coefficient", "0.01")])
    assert not_measured(config, [{"gain": 0.5}], decided=False) == [
        {"title": "Parallelism", "reason": NO_PROFILE}
    ]


def test_the_report_of_a_run_without_decisions_says_why(tmp_path: Path):
    recorded(tmp_path)
    (tmp_path / "decisions.jsonl").unlink()
    missing = report_data(write_report(tmp_path))["sections"]["missing"]
    assert {"title": "Parallelism", "reason": NO_PROFILE} in missing
