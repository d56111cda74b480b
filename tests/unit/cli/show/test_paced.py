"""Every place that shows a run on paced devices says that its times are simulated."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from typer.testing import CliRunner

from earl.cli.compare.figures import MeasuredFigure
from earl.cli.compare.figures import figures as compared
from earl.cli.lib.figures import figures
from earl.cli.machine.config import app as config_app
from earl.cli.report.data import read_run
from earl.cli.report.page import write_report
from earl.cli.run.launch import last_words
from earl.cli.run.live_view import LiveView
from earl.cli.run.plain_view import PlainView
from earl.cli.show import panels
from earl.cli.show.status import rendered
from earl.obs.metrics import LineFile, read_lines
from earl.stack.codec import decode_status
from earl.stack.launcher import LaunchOutcome
from earl.v1 import scheduler_pb2
from services.scheduler.monitor.workload import Monitor
from tests.support.paths import ROOT
from tests.support.recorded import recorded
from tests.support.report_file import report_data
from tests.support.snapshots import SNAPSHOT, STATUS

TEXT = "SIMULATED TIMES: rollout on devices paced by slow-link"
PACED = replace(STATUS, paced=TEXT, metrics={**STATUS.metrics, "paced_steps": 400.0, "late_steps": 10.0})
LINE = f"{TEXT}; 2.5% of 400 steps over pace"


def test_status_and_top_say_it_in_their_first_line():
    snapshot = replace(SNAPSHOT, status=PACED)
    assert panels.headline(snapshot).endswith(LINE)
    console = Console(file=io.StringIO(), width=240, record=True)
    console.print(rendered(snapshot))
    assert LINE in console.export_text()
    assert "SIMULATED" not in panels.headline(SNAPSHOT)
    assert snapshot.as_object()["status"]["paced"] == TEXT


def test_the_schedulers_answer_carries_it():
    assert decode_status(scheduler_pb2.GetStatusResponse(paced=TEXT)).paced == TEXT


def test_a_running_launch_says_it_once_and_its_last_words_again(tmp_path: Path):
    lines = io.StringIO()
    view = PlainView(lines)
    view.update((), PACED)
    view.update((), PACED)
    assert lines.getvalue().count(TEXT) == 1
    assert LINE in list(last_words(LaunchOutcome(tmp_path, PACED, complete=True, seconds=1.0)))


def test_the_view_in_a_terminal_has_a_line_for_it():
    console = Console(file=io.StringIO(), width=140, force_terminal=True)
    view = LiveView(console)
    view.update((), PACED)
    with console.capture() as captured:
        console.print(view._render())
    assert LINE in captured.get()


def test_checking_a_run_file_says_it():
    run_file = str(ROOT / "examples" / "tictactoe.toml")
    result = CliRunner().invoke(config_app, ["check", run_file, "--paced.table", "slow-link"])
    assert "SIMULATED TIMES: rollout and trainer on devices paced by slow-link" in result.stdout


def test_the_result_has_it_with_the_part_of_steps_over_pace(tmp_path: Path):
    result = figures(LaunchOutcome(tmp_path, PACED, complete=True, seconds=1.0), seed=0)
    assert (result["paced"], result["over_pace"]) == (TEXT, 0.025)
    real = figures(LaunchOutcome(tmp_path, STATUS, complete=True, seconds=1.0), seed=0)
    assert "paced" not in real and "over_pace" not in real


def test_comparison_and_report_have_it(tmp_path: Path):
    recorded(tmp_path, steps=2)
    config = json.loads((tmp_path / "run.json").read_text())
    config["paced"] = {"table": "slow-link"}
    (tmp_path / "run.json").write_text(json.dumps(config))
    steps = list(read_lines(tmp_path / "metrics.jsonl"))
    (tmp_path / "metrics.jsonl").unlink()
    file = LineFile(tmp_path / "metrics.jsonl")
    file.write(*({**step, "paced_steps": 200.0, "late_steps": 3.0} for step in steps))
    file.close()
    values = {figure.key: figure.of(read_run(tmp_path)) for figure in compared()}
    text = "SIMULATED TIMES: rollout and trainer on devices paced by slow-link"
    assert values["paced"] == text
    assert values["over_pace"] == MeasuredFigure(0.015)
    assert report_data(write_report(tmp_path))["sections"]["run"]["paced"] == text


def test_a_monitor_adds_up_the_steps_of_all_workers():
    monitor = Monitor()
    assert monitor.counters.totals == {}
    monitor.reported("rollout", "rollout-0", {"paced_steps": 300.0, "late_steps": 4.0}, 1)
    monitor.reported("rollout", "rollout-1", {"running_episodes": 1.0}, 1)
    monitor.reported("trainer", "trainer", {"paced_steps": 10.0, "late_steps": 1.0}, 1)
    assert monitor.counters.totals == {"paced_steps": 310.0, "late_steps": 5.0}
