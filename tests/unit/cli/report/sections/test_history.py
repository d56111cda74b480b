"""Switches and decisions of a recorded run as sections of its page: layouts, stalls, reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from earl.cli.lib.run_directory import config_of
from earl.cli.report.page import write_report
from earl.cli.report.sections import chosen, history
from earl.cli.report.sections.history import RunHistory
from earl.obs.metrics import read_lines
from services.scheduler.files.metrics_files import RunReport
from services.scheduler.state.switch_records import By, SwitchRecord
from tests.support.recorded import recorded
from tests.support.report_file import report_data

DP2, TP2 = (2, 1, 1, 1), (1, 2, 1, 1)
EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>&amp; \x1b[31m\u202e"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    recorded(tmp_path)
    return tmp_path


def sections(directory: Path) -> dict[str, Any]:
    return RunHistory(directory, config_of(directory)).update()


def record_switches(directory: Path, *switches: SwitchRecord, before_step: int = 7) -> None:
    """They end while `before_step` is trained, as the scheduler writes them."""
    spans = {int(line["end_ns"]) for line in read_lines(directory / "timeline.jsonl")}
    end_ns = sorted(spans)[before_step - 2] + 1
    report = RunReport(directory)
    for switch in switches:
        report.switched("rollout", switch, end_ns)
    report.close()


def switch(epoch: int, **fields: Any) -> SwitchRecord:
    given = {"before": DP2, "after": TP2, "by": By.SELECTOR, "reason": "lengths decide"}
    return SwitchRecord(epoch=epoch, **(given | fields))


def test_a_switch_is_listed_with_its_layouts_stall_and_step(directory: Path):
    record_switches(directory, switch(1, stall_s=0.25, seconds=0.5))
    [shown] = sections(directory)["lengths"]["switches"]
    assert (shown["stage"], shown["before"], shown["after"]) == ("rollout", "dp2", "tp2")
    assert (shown["stall_s"], shown["seconds"], shown["reason"]) == (0.25, 0.5, "lengths decide")
    assert (shown["rolled_back"], shown["by"]) == (False, "selector")
    assert shown["at_step"] == 6  # the last step that was trained when it ended
    assert "end_ns" not in shown and shown["time_s"] > 0


def test_the_step_that_a_selector_decided_for_counts_before_the_time(directory: Path):
    record_switches(directory, switch(1, step=4), switch(2, step=1))
    assert [shown["at_step"] for shown in sections(directory)["lengths"]["switches"]] == [3, 0]


def test_a_switch_that_was_rolled_back_says_so_with_its_reason(directory: Path):
    record_switches(directory, switch(1, by=By.OPERATOR, rolled_back=True, message="no room"))
    [shown] = sections(directory)["lengths"]["switches"]
    assert (shown["rolled_back"], shown["message"], shown["by"]) == (True, "no room", "operator")


def test_a_figure_that_is_not_a_number_is_null(directory: Path):
    record_switches(directory, switch(1, max_logprob_difference=float("nan")))
    [shown] = sections(directory)["lengths"]["switches"]
    assert shown["max_logprob_difference"] is None
    json.dumps(shown, allow_nan=False)


def test_a_hostile_reason_of_a_switch_stays_text(directory: Path):
    record_switches(directory, switch(1, reason=EVIL, rolled_back=True, message=EVIL))
    report = write_report(directory)
    [shown] = report_data(report)["sections"]["lengths"]["switches"]
    assert (shown["reason"], shown["message"]) == (EVIL, EVIL)
    assert "<script>alert" not in report.read_text() and "<!--" not in report.read_text()


def test_of_many_switches_the_last_are_listed(directory: Path):
    record_switches(directory, *(switch(epoch) for epoch in range(1, history.LISTED + 9)))
    shown = sections(directory)["lengths"]["switches"]
    assert [one["epoch"] for one in shown] == list(range(9, history.LISTED + 9))


def test_a_line_that_is_no_switch_is_left_out(directory: Path):
    record_switches(directory, switch(1))
    [line] = read_lines(directory / "switches.jsonl")
    with (directory / "switches.jsonl").open("a") as file:
        for damaged in ({"stage": "rollout"}, line | {"after": {"dp": 0, "tp": 1, "cp": 1, "pp": 1}}):
            file.write(json.dumps(damaged) + "\n")
    assert [shown["epoch"] for shown in sections(directory)["lengths"]["switches"]] == [1]


def record_changes(directory: Path, count: int, reason: str) -> None:
    """Decisions of which each changes the verdict of the one before, for the steps from 2 on."""
    *_, last = read_lines(directory / "decisions.jsonl")
    layouts = [dict(zip(("dp", "tp", "cp", "pp"), degrees, strict=True)) for degrees in (DP2, TP2)]
    with (directory / "decisions.jsonl").open("w") as file:
        for step in range(2, count + 2):
            verdict = {
                **last["verdict"], "before": layouts[step % 2], "after": layouts[1 - step % 2],
                "switched": True, "reason": reason,
            }  # fmt: skip
            file.write(json.dumps({**last, "step": step, "verdict": verdict}) + "\n")


def test_of_many_changed_verdicts_the_last_are_listed_and_all_counted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chosen, "LISTED", 12)
    record_changes(directory, 30, EVIL)
    [stage] = sections(directory)["decisions"]
    changes = stage["history"]["changes"]
    assert [step for step, _ in changes] == list(range(20, 32))
    # A band for each verdict, and the listed reasons as they were written.
    assert len(stage["history"]["chosen"]) == 30 and {reason for _, reason in changes} == {EVIL}
    assert "<script>alert" not in write_report(directory).read_text()
