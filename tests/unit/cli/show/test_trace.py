"""earl trace: by the trace-event format, with nothing of the run left out."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from earl.cli.report.data import read_run
from earl.cli.show.trace import app
from earl.cli.show.trace_events import trace_of
from earl.errors import ConfigError
from earl.worker_report import BusySpan
from services.scheduler.files.metrics_files import RunReport
from services.scheduler.state.switch_records import By, SwitchRecord
from tests.support.recorded import recorded

NS = 1_000_000_000


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    recorded(directory, steps=4)
    report = RunReport(directory)
    report.spans("rollout-0", [BusySpan("generate", 31 * NS, 33 * NS), BusySpan("env", 32 * NS, 34 * NS)])
    # Two heartbeats that overlap a little.
    report.spans("rollout-0", [BusySpan("generate", 33 * NS - 500, 34 * NS)])
    switch = SwitchRecord(
        epoch=1, before=(2, 1, 1, 1), after=(1, 2, 1, 1), by=By.SELECTOR, reason="longer", step=3,
        stall_s=0.5, seconds=2.0, sequences_continued=7,
    )  # fmt: skip
    report.switched("rollout", switch, 38 * NS)
    report.switched("rollout", SwitchRecord(epoch=2, before=(1, 2, 1, 1), after=(2, 1, 1, 1), by=By.REALIGN,
                                      rolled_back=True, message="no", seconds=1.0), 39 * NS)  # fmt: skip
    report.close()
    return directory


@pytest.fixture(scope="module")
def events(run_directory):
    return trace_of(read_run(run_directory))["traceEvents"]


def named(events):
    """(process, track) of each event's numbers."""
    processes = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    tracks = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    return {(pid, tid): (processes[pid], track) for (pid, tid), track in tracks.items()}


def test_every_event_is_one_of_the_format(events):
    names = named(events)
    for event in events:
        assert event["ph"] in "MXCi" and isinstance(event["name"], str) and event["name"]
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0 and (event["pid"], event["tid"]) in names
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(value, (int, float)) for value in event["args"].values())
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")


def test_spans_of_a_track_nest(events):
    stacks = {}
    for event in (one for one in events if one["ph"] == "X"):
        stack = stacks.setdefault((event["pid"], event["tid"]), [])
        start, end = event["ts"], event["ts"] + event["dur"]
        while stack and stack[-1] <= start + 1e-3:
            stack.pop()
        assert not stack or end <= stack[-1] + 1e-3, event
        stack.append(end)


def test_nothing_of_the_run_is_missing(events):
    names = named(events)
    spans = [(*names[one["pid"], one["tid"]], one["name"], one) for one in events if one["ph"] == "X"]
    assert sum(track == "steps" for _, track, _, _ in spans) == 4
    assert [name for who, track, name, _ in spans if (who, track) == ("rollout-0", "generate")] == [
        "generate"
    ] * 2
    switches = {name: event for who, _, name, event in spans if who == "switches"}
    assert set(switches) == {"dp=1 tp=2", "back to dp=1 tp=2", "stall"}
    assert switches["dp=1 tp=2"]["args"]["reason"] == "longer" and switches["dp=1 tp=2"]["dur"] == 2e6
    assert switches["stall"]["dur"] == 5e5
    moments = [one["name"] for one in events if one["ph"] == "i"]
    assert moments == ["evaluation start", "evaluation final"]
    counters = {one["name"] for one in events if one["ph"] == "C"}
    assert {"tokens/s", "reward", "episode tokens", "staleness, versions", "memory used"} <= counters
    step = next(event for _, track, _, event in spans if track == "steps")
    assert step["name"] == "train 1" and step["args"]["loss"] == 0.1


def test_the_command_writes_it(run_directory, tmp_path):
    plain, packed = tmp_path / "t.json", tmp_path / "t.json.gz"
    said = CliRunner().invoke(app, [str(run_directory), "--out", str(plain), "--json"])
    assert said.exit_code == 0
    whole = json.loads(plain.read_text())
    assert json.loads(said.stdout)["events"] == len(whole["traceEvents"])
    assert CliRunner().invoke(app, [str(run_directory), "--out", str(packed)]).exit_code == 0
    assert json.loads(gzip.decompress(packed.read_bytes())) == whole


def test_what_is_no_run_is_named(tmp_path):
    failed = CliRunner().invoke(app, [str(tmp_path)])
    assert isinstance(failed.exception, ConfigError) and "run.json" in str(failed.exception)
