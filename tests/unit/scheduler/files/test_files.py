"""The run's files and the fleet's totals."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest

from earl.obs.metrics import LineFile, read_lines
from earl.parallelism import Parallelism
from earl.transcript import TranscriptTurn
from earl.worker_report import BusySpan, TransferTotals
from services.scheduler.files.endings import PERIOD_S, Endings
from services.scheduler.files.metrics_files import RunReport
from services.scheduler.files.samples import SampleFile
from services.scheduler.monitor.length_sketch import Quantiles
from services.scheduler.monitor.workers import WorkerFleet, WorkerReport
from services.scheduler.monitor.workload import DoneWork, ObservedWorkload, StepFigures
from services.scheduler.selector.decision import Workload
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.tickets import EpisodeEnding, EpisodeResult, Purpose, Ticket
from tests.support.disk import full_at


def test_lines_are_strict_json_and_a_truncated_line_is_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "a" / "m.jsonl"
    path.parent.mkdir()
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    file = LineFile(path)
    file.write({"step": 3, "loss": math.nan, "nested": {"worst": math.inf, "list": [1, -math.inf]}})
    file.close()
    assert list(read_lines(path)) == [
        {"step": 1},
        {"step": 3, "loss": None, "nested": {"worst": None, "list": [1, None]}},
    ]
    assert list(read_lines(tmp_path / "none")) == []


def test_a_full_disk_is_said_once_and_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = LineFile(tmp_path / "m.jsonl")
    with full_at(16):
        assert file.write({"step": 1})
        assert not file.write({"step": 2}, {"step": 3})
        assert not file.write({"step": 4})
        with pytest.raises(OSError, match="File too large"):
            file.append({"step": 5})
    assert len(caplog.records) == 1 and "m.jsonl cannot be written" in caplog.text
    assert file.write({"step": 6})
    file.close()
    assert list(read_lines(tmp_path / "m.jsonl")) == [{"step": 1}, {"step": 6}]


def test_a_file_that_cannot_be_opened_is_opened_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run" / "m.jsonl"
    path.parent.write_text("in its way")
    file = LineFile(path)
    assert not file.write({"step": 1}) and len(caplog.records) == 1
    path.parent.unlink()
    assert file.write({"step": 2})
    file.close()
    assert list(read_lines(path)) == [{"step": 2}]


def test_what_the_scheduler_tells_survives_a_full_disk(tmp_path: Path) -> None:
    report, endings = RunReport(tmp_path), Endings(tmp_path)
    ticket = Ticket(
        id=1, group=1, purpose=Purpose.EVALUATE, env_seed=0, sample_seed=0, min_version=0, temperature=1.0
    )
    path = tmp_path / "samples.jsonl"
    for step in range(3):
        SampleFile(path).observe(step, ticket, EpisodeResult(), [TranscriptTurn("user", "hello", 1)])
    samples = SampleFile(path, limit_bytes=path.stat().st_size - 1)
    done = evaluated("start", 3, [1.0, -1.0])
    with full_at(1):  # too small for samples to be thinned, too
        report.spans("w", [BusySpan("step", 1, 2)])
        report.evaluations([done], 1.0)
        endings.count(EpisodeResult())
        endings.write(PERIOD_S)
        samples.observe(3, ticket, EpisodeResult(), [TranscriptTurn("user", "hello", 1)])
    report.evaluations([done], 2.0)
    assert len(list(read_lines(path))) == 3
    samples.observe(4, ticket, EpisodeResult(), [TranscriptTurn("user", "hello", 1)])
    assert 0 < len(list(read_lines(path))) < 3
    endings.close(2 * PERIOD_S)
    report.close()
    samples.close()
    assert [line["name"] for line in read_lines(tmp_path / "evaluations.jsonl")] == ["start"]
    assert [line["ok"] for line in read_lines(tmp_path / "endings.jsonl")] == [1]


def evaluated(name: str, version: int, rewards: list[float], episodes: int = 0) -> EvaluationRecord:
    evaluation = EvaluationRecord(name=name, version=version, episodes=episodes or len(rewards))
    for index, reward in enumerate(rewards):
        evaluation = evaluation.with_result(index, EpisodeResult(reward=reward))
    return evaluation


def test_an_evaluation_is_written_once_also_after_a_restart(tmp_path: Path) -> None:
    done = evaluated("start", 3, [1.0, -1.0])
    in_progress = evaluated("final", 9, [1.0], episodes=2)
    for _ in range(2):
        report = RunReport(tmp_path)
        report.evaluations([done, in_progress], 1.0)
        report.evaluations([done, in_progress], 2.0)
        report.close()
    [line] = (tmp_path / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(line)["win_rate"] == 0.5
    assert json.loads(line)["rewards"] == [1.0, -1.0] and json.loads(line)["wins"] == [1.0, 0.0]


def test_an_evaluation_that_was_rolled_back_is_written_again(tmp_path: Path) -> None:
    report = RunReport(tmp_path)
    start = evaluated("start", 1, [0.0, 0.0, 1.0])
    report.evaluations([start, evaluated("step-2", 3, [0.0, 1.0, 1.0])], 1.0)
    report.evaluations([start], 2.0)
    again = evaluated("step-2", 3, [1.0, 1.0], episodes=3).with_failure()
    report.evaluations([start, again], 3.0)
    report.close()
    lines = list(read_lines(tmp_path / "evaluations.jsonl"))
    assert [line["name"] for line in lines] == ["start", "step-2", "step-2"]
    assert lines[2]["rewards"] == [1.0, 1.0, None]
    assert lines[2]["gain"] == 1.0 and lines[2]["gain_episodes"] == 2
    assert "gain" not in lines[0]


def test_engines_are_idle_for_what_is_left_of_their_seconds(tmp_path: Path) -> None:
    """Two devices, commits ten seconds apart."""
    report = RunReport(tmp_path)

    def step(number: int, done: DoneWork) -> None:
        played = ObservedWorkload(Workload(10.0, 10.0, 10.0, 1.0), 1.0, done=done)
        lengths = Quantiles(10.0, 10.0, 10.0, 10.0)
        observed = StepFigures({"rollout": Parallelism(2)}, {"rollout": played}, 0.0, lengths, lengths)
        report.step(
            step=number, phase="train", version=number, time_s=10.0 * number, trajectories={}, trainer={},
            observed=observed, length_tokens=[10], transfers=[], ledger={}, stages={},
        )  # fmt: skip

    # Of the first step nobody knows how long it took. A heartbeat may carry what was done before.
    for number, done in enumerate((8.0, 15.0, 21.0), 1):
        step(number, DoneWork(1.0, done, there_s=20.0))
    step(4, DoneWork(1.0, 5.0, reported=False, there_s=20.0))
    # One of the devices came in the middle of the step.
    step(5, DoneWork(1.0, 12.0, there_s=15.0))
    report.close()
    lines = list(read_lines(tmp_path / "metrics.jsonl"))
    assert [line.get("engines_idle_fraction") for line in lines] == [
        None,
        0.25,
        0.0,
        None,
        pytest.approx(0.2),
    ]


def test_transfers_of_former_lives_stay_counted() -> None:
    shm, tcp = partial(TransferTotals, path="shm"), partial(TransferTotals, path="ucx-tcp")
    reports = [
        ("w", 1, shm(size_bytes=100, seconds=1.0, transfers=1)),
        ("w", 1, shm(size_bytes=150, seconds=1.5, transfers=2, retries=1)),
        ("w", 2, shm(size_bytes=7, seconds=0.5, transfers=1, retries=2)),
        ("v", 5, tcp(size_bytes=1)),
    ]
    fleet = WorkerFleet()
    for name, incarnation, total in reports:
        fleet.reported(name, WorkerReport(incarnation, 0.0, transfers=[total]))
    assert fleet.moved() == [shm(size_bytes=157, seconds=2.0, transfers=3, retries=3), tcp(size_bytes=1)]
    assert [total.gb_per_s for total in fleet.moved()] == [pytest.approx(157 / 2 / 1e9), 0.0]


def test_endings_are_counted_over_time_and_none_is_lost_or_counted_twice(tmp_path: Path) -> None:
    lost = "EngineOutOfMemory: engine rollout-0/0 is gone: rank 0 ran out of memory"
    first = Endings(tmp_path)
    first.count(EpisodeResult())
    first.count(EpisodeResult(ending=EpisodeEnding.TRUNCATED))
    first.write(PERIOD_S - 0.1)
    first.count(EpisodeResult(ending=EpisodeEnding.INFRA_ERROR, message=lost))
    first.write(PERIOD_S + 0.1)
    first.write(3 * PERIOD_S)
    first.count(
        EpisodeResult(ending=EpisodeEnding.INFRA_ERROR, message="EngineLost: engine rollout-0/0 is gone")
    )
    refused = "OutOfMemory: engine rollout-0/0 has no memory for a step of 900 tokens"
    first.count(EpisodeResult(ending=EpisodeEnding.INFRA_ERROR, message=refused))
    first.close(3 * PERIOD_S)
    # A scheduler that takes over writes on.
    second = Endings(tmp_path)
    second.count(EpisodeResult(ending=EpisodeEnding.ENV_ERROR, message="it says EngineOutOfMemory: no"))
    second.close(4 * PERIOD_S)
    second = Endings(tmp_path)
    second.close(5 * PERIOD_S)
    zero = {"ok": 0, "truncated": 0, "env_error": 0, "infra_error": 0, "timeout": 0, "out_of_memory": 0}
    assert list(read_lines(tmp_path / "endings.jsonl")) == [
        {"time_s": 5.1, **zero, "ok": 1, "truncated": 1, "infra_error": 1, "out_of_memory": 1},
        {"time_s": 15.0, **zero, "infra_error": 2, "out_of_memory": 1},
        {"time_s": 20.0, **zero, "env_error": 1},
    ]


def test_endings_of_a_mixture_are_counted_by_environment(tmp_path: Path) -> None:
    endings = Endings(tmp_path)
    endings.count(EpisodeResult(), "a/b")
    endings.count(EpisodeResult(ending=EpisodeEnding.TIMEOUT), "c")
    endings.count(EpisodeResult(), "a/b")
    endings.write(PERIOD_S)
    endings.count(EpisodeResult(), "c")
    endings.close(2 * PERIOD_S)
    first, second = read_lines(tmp_path / "endings.jsonl")
    assert first["ok"] == 2 and first["timeout"] == 1
    counts = {label: (of["ok"], of["timeout"]) for label, of in first["environments"].items()}
    assert counts == {"a/b": (2, 0), "c": (0, 1)}
    assert second["environments"].keys() == {"c"} and endings.totals["ok"] == 3
