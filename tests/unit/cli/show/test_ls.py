"""`earl ls`, `earl rm` and how every command finds a run: by name, by directory, or the newest."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from earl.cli.lib.find_run import directory_of, is_evaluation, newest, pick_run
from earl.cli.run import rm
from earl.cli.show import ls
from earl.errors import ConfigError, EarlError
from earl.stack.record import LaunchRecord, write_record
from earl.stack.rundir import RunDirectory
from earl.stack.status import RunStatus
from tests.support.runs import tictactoe


def ended_run(folder: Path, name: str, sections: Mapping[str, Any] | None = None, **record: object) -> Path:
    """A directory of a run whose launch has ended. sections: keys of its configuration."""
    config = tictactoe(folder, **dict(sections or {})).model_copy(update={"name": name})
    with RunDirectory(config, resume=False) as directory:
        directory.write(config, config)
        write_record(directory.path, LaunchRecord(pid=1, mark=f"no such mark {name}", **record))  # type: ignore[arg-type]
        return directory.path


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs in ./runs: `first` complete, `second`, which is newer, failed."""
    monkeypatch.chdir(tmp_path)
    now = time.time_ns()
    status = RunStatus(run="first", phase="train", step=2, steps=2, metrics={"reward_mean": 0.25})
    hour_ago = now - 3600 * 10**9
    ended_run(Path("runs"), "first", outcome="complete", status=status, started_ns=hour_ago, ended_ns=now)
    os.utime("runs/first/run.json", ns=(hour_ago, hour_ago))
    ended_run(Path("runs"), "second", outcome="failed", started_ns=now, ended_ns=now)
    return tmp_path / "runs"


def invoked(app, *words: str, answer: str | None = None) -> str:
    done = CliRunner().invoke(app, list(words), input=answer)
    if isinstance(done.exception, EarlError):
        raise done.exception
    return done.stdout


def test_runs_are_listed_the_newest_first(runs: Path):
    listed = json.loads(invoked(ls.app, "--json"))
    assert [(run["name"], run["state"], run["steps"], run["reward"]) for run in listed] == [
        ("second", "failed", 0, None),
        ("first", "complete", 2, 0.25),
    ]
    text = invoked(ls.app)
    assert "train 2/2" in text and "+0.250" in text and "1 h ago" in text
    assert "has no runs" in invoked(ls.app, str(runs / "first"))


def test_a_reward_is_a_score_where_nothing_is_won():
    game = ls.ListedRun("game", "d", "complete", reward=0.5, win_rate=0.75, has_winners=True)
    sums = ls.ListedRun("sums", "d", "complete", reward=0.25)
    new = ls.ListedRun("new", "d", "starting")
    results = ("reward", "score", "win rate")

    def shown(*runs: ls.ListedRun) -> list[dict[str, str]]:
        table = ls.table_of(runs, 0.0)
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        return [{name: row[name] for name in results if name in row} for row in rows]

    assert shown(game, sums) == [
        {"reward": "+0.500", "score": "", "win rate": "75.0%"},
        {"reward": "", "score": "+0.250", "win rate": ""},
    ]
    assert shown(game) == [{"reward": "+0.500", "win rate": "75.0%"}]
    assert shown(sums, new)[0] == {"score": "+0.250", "win rate": ""}
    assert shown(new) == [{"score": "", "win rate": ""}]


def test_a_directory_that_cannot_be_read_is_listed_with_its_fault(runs: Path):
    (runs / "first" / "run.json").write_text("{}")
    listed = {run["name"]: run for run in json.loads(invoked(ls.app, "--json"))}
    assert listed["first"]["state"] == "unknown" and "of another version" in listed["first"]["fault"]


def test_a_run_is_found_by_its_name_its_directory_or_as_the_newest(runs: Path):
    assert directory_of("first") == Path("runs/first") == directory_of("runs/first")
    assert pick_run(None, ended=True) == Path("runs/second")
    with pytest.raises(ConfigError, match=r"there is no run 'frist'.*; did you mean first\?"):
        directory_of("frist")
    with pytest.raises(ConfigError, match=r"there is no run 'x'.*; earl ls lists the runs"):
        directory_of("x")


def test_a_name_is_the_run_of_that_name_and_not_a_folder_called_the_same(runs: Path):
    (runs.parent / "first").mkdir()
    assert directory_of("first") == Path("runs/first") == pick_run(Path("first"))
    assert directory_of("./first") == Path("first")
    with pytest.raises(ConfigError, match=r"photos is not a run directory"):
        (runs.parent / "photos").mkdir()
        pick_run(Path("photos"))
    # A run that stands beside the folder of runs.
    shutil.copytree(runs / "second", runs.parent / "third")
    assert directory_of("third") == Path("third") == pick_run(Path("third"))


def test_an_evaluation_is_no_default(runs: Path):
    only_evaluates = {"scheduler": {"steps": 0}, "warmup": {"batches": 0}}
    ended_run(Path("runs"), "second-eval", only_evaluates, outcome="complete")
    later = time.time() + 60
    os.utime("runs/second-eval/run.json", (later, later))
    assert newest()[0].name == "second-eval" and is_evaluation(newest()[0])
    assert pick_run(None, ended=True) == Path("runs/second")
    assert pick_run(Path("second-eval"), ended=True) == Path("runs/second-eval")
    for name in ("first", "second"):
        shutil.rmtree(runs / name)
    assert pick_run(None, ended=True) == Path("runs/second-eval")
    (runs / "second-eval" / "run.json").write_text("{}")
    assert not is_evaluation(runs / "second-eval")


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (2e5, "2 d")]
)
def test_durations_are_rough(seconds: float, text: str):
    assert ls.rough(seconds) == text


def test_runs_that_have_ended_are_removed(runs: Path):
    assert "removed" not in invoked(rm.app, "first", answer="n\n") and (runs / "first").is_dir()
    assert invoked(rm.app, "--yes", "first", "runs/second").count("removed ") == 2
    assert list(runs.iterdir()) == []


def test_nothing_is_removed_if_one_of_them_must_stay(runs: Path):
    elsewhere = runs.parent / "photos"
    elsewhere.mkdir()
    with pytest.raises(ConfigError, match=r"run\.json"):
        invoked(rm.app, "--yes", "first", str(elsewhere))
    second = tictactoe(runs).model_copy(update={"name": "second"})
    with (
        RunDirectory(second, resume=True),
        pytest.raises(ConfigError, match="second is running; end it first: earl stop"),
    ):
        invoked(rm.app, "--yes", "first", "second")
    (runs / "link").symlink_to(runs / "first")
    with pytest.raises(ConfigError, match="link is a link"):
        invoked(rm.app, "--yes", "link")
    (runs / "second" / "launch.json").unlink()
    with pytest.raises(ConfigError, match="was not launched by `earl` on this machine"):
        invoked(rm.app, "--yes", "first", "second")
    assert (runs / "first").is_dir() and elsewhere.is_dir()
