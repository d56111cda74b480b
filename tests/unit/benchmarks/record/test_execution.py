"""Checks what `earl bench` records: nothing is overwritten, nothing of an uncommitted tree accepted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.record import checkout as checkouts
from benchmarks.record import execution, results, run_log
from benchmarks.record.checkout import Checkout, UncommittedTree, checkout, require_committed
from benchmarks.record.execution import RecordedCommand, recorded
from benchmarks.record.machine import described, load, machine_class, processor_seconds
from benchmarks.record.results import created, over_time, publish
from benchmarks.record.run_log import RunLog, public, unfinished
from earl.obs import processor

CLEAN = Checkout("0123456789ab")
CHANGED = Checkout("0123456789ab", ("earl/bus/bus.py",))


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit that stands for this checkout, and its record."""
    root = tmp_path / "checkout"
    folder = root / checkouts.RESULTS_FOLDER
    folder.mkdir(parents=True)
    (root / "earl").mkdir()
    (root / "earl" / "code.py").write_text("1\n")
    for arguments in (("init", "-q"), ("add", "-A")):
        subprocess.run(["git", "-C", str(root), *arguments], check=True)
    commit(root)
    monkeypatch.setattr(checkouts, "ROOT", root)
    for module in (execution, results):
        monkeypatch.setattr(module, "checkout", lambda: checkout(root))
    return folder


def commit(root: Path) -> None:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    subprocess.run(["git", "-C", str(root), "add", "-A"], check=True)
    subprocess.run(["git", "-C", str(root), *who, "commit", "-qm", "change", "--allow-empty"], check=True)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def app(work: Any) -> typer.Typer:
    made = typer.Typer()

    @made.command(cls=RecordedCommand)
    def bench(results: Path, pause: bool = False) -> None:
        work(results)

    return made


# --- the tree -------------------------------------------------------------------------------


def test_a_checkout_says_what_differs_from_its_commit(record: Path) -> None:
    root = record.parents[1]
    head = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout
    assert checkout(root) == Checkout(head[:12]) and checkout(root).label == head[:12]
    # What benchmarks write themselves is no change; a file that is not known yet may be imported.
    (record / "x.json").write_text("{}")
    (root / "notes.txt").write_text("")
    assert checkout(root).changes == ()
    (root / "earl" / "new.py").write_text("")
    (root / "earl" / "code.py").write_text("2\n")
    assert checkout(root).changes == ("earl/code.py", "earl/new.py")
    assert checkout(root).label == f"{head[:12]}+changes"


def test_a_folder_within_another_repository_is_no_checkout(record: Path) -> None:
    assert checkout(record.parent) == Checkout(None)
    assert checkout(record.parents[2]) == Checkout(None)


def test_an_unknown_commit_and_a_changed_tree_are_refused_with_what_to_do() -> None:
    require_committed(CLEAN)
    with pytest.raises(UncommittedTree, match=r"earl/bus/bus\.py.*; commit or stash.*--results DIR"):
        require_committed(CHANGED)
    with pytest.raises(UncommittedTree, match=r"a, b, c, \.\.\.\)"):
        require_committed(Checkout("0123456789ab", tuple("abcd")))
    with pytest.raises(UncommittedTree, match="git names no commit"):
        require_committed(Checkout(None))


def test_a_tree_that_changes_meanwhile_counts_as_changed() -> None:
    assert over_time(CLEAN, CLEAN) == CLEAN
    assert over_time(CLEAN, CHANGED) == CHANGED and over_time(CHANGED, CLEAN) == CHANGED
    assert over_time(CLEAN, Checkout("ba9876543210")).label == "0123456789ab+changes"


# --- results --------------------------------------------------------------------------------


def test_two_results_of_one_second_are_two_files(tmp_path: Path) -> None:
    paths = [created(tmp_path / "new", "x", f"{number}") for number in range(3)]
    assert len(set(paths)) == 3 and [path.read_text() for path in paths] == ["0", "1", "2"]


def test_results_saved_at_the_same_time_never_overwrite_each_other(tmp_path: Path) -> None:
    threads = [threading.Thread(target=created, args=(tmp_path, "x", f"{number}")) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(path.read_text()) for path in tmp_path.iterdir()) == list(range(16))


def test_a_result_names_commit_machine_and_load(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = publish("x", {"figure": 1}, record, as_json=True)
    result = json.loads(path.read_text())
    assert result == json.loads(capsys.readouterr().out)
    assert result["commit"] == checkout(record.parents[1]).commit and "commit_unknown" not in result
    assert result["figure"] == 1 and result["benchmark"] == "x"
    assert {
        "cores",
        "memory_gib",
        "processor",
        "instruction_sets",
        "native_bfloat16",
        "cpu_capability",
        "gpus",
    } <= (result["machine"].keys())
    assert result["load_before"]["load_1m"] >= 0


def test_a_result_keeps_the_ids_of_what_it_measured(record: Path) -> None:
    root = record.parents[1]
    (root / "pyproject.toml").write_text(
        '[project.entry-points."earl.benchmarks"]\nx = "benchmarks.x:app"\nother = "benchmarks.x:app"\n'
    )
    (root / "benchmarks" / "x.py").write_text('MEASURED_CODE = ("earl", "earl/code.py")\n')
    commit(root)
    kept = json.loads(publish("x-run_file", {}, record, as_json=False).read_text())["measured_code"]
    shown = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "HEAD:earl", "HEAD:earl/code.py"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert list(kept.items()) == list(zip(("earl", "earl/code.py"), shown.stdout.split(), strict=True))
    # A benchmark that names nothing, and a tree that is no commit's.
    assert "measured_code" not in json.loads(publish("y", {}, record, as_json=False).read_text())
    assert results.identity("x", Checkout("0123456789ab", ("earl/code.py",))) == {}


def test_outside_a_checkout_a_result_says_that_no_commit_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "checkout", lambda: Checkout(None))
    monkeypatch.setattr(execution, "checkout", lambda: Checkout(None))
    result = json.loads(publish("x", {}, tmp_path, as_json=False).read_text())
    assert result["commit"] is None and "not of a git checkout" in result["commit_unknown"]


def test_a_tree_that_is_changed_while_a_benchmark_runs_costs_the_file_and_not_the_figures(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = record.parents[1]
    log = RunLog(tmp_path / "runs.jsonl")
    with pytest.raises(UncommittedTree), recorded("x", [], record, checkout(root), log):
        (root / "earl" / "code.py").write_text("3\n")
        publish("x", {"figure": 7}, record, as_json=False)
    assert json.loads(capsys.readouterr().out)["figure"] == 7 and list(record.iterdir()) == []
    assert lines(tmp_path / "runs.jsonl")[1]["outcome"] == "refused"


# --- runs.jsonl -----------------------------------------------------------------------------


def test_each_way_to_end_is_recorded(record: Path, tmp_path: Path) -> None:
    root, path = record.parents[1], tmp_path / "runs.jsonl"

    def run(work: Any, folder: Path, error: type[BaseException] | None = None) -> dict[str, Any]:
        log = RunLog(path)
        told = ["--results", str(folder)]
        with (
            pytest.raises(error) if error else nullcontext(),
            recorded("x", told, folder, checkout(root), log),
        ):
            work(folder)
        begun, ended = lines(path)[-2:]
        assert begun["id"] == ended["id"] == log.id and begun["name"] == ended["name"] == "x"
        assert begun["commit"] == checkout(root).label and begun["machine"] == machine_class()
        return ended

    def raises(error: BaseException) -> Any:
        def work(_: Path) -> None:
            raise error

        return work

    saved = run(lambda folder: publish("x", {}, folder, as_json=False), record)
    assert saved["outcome"] == "saved" and (record / saved["files"][0]).exists()
    assert run(lambda folder: publish("x", {}, folder, as_json=False), tmp_path)["outcome"] == "elsewhere"
    assert run(lambda _: None, record)["outcome"] == "nothing_saved"
    assert run(raises(typer.Exit(0)), record, typer.Exit)["outcome"] == "nothing_saved"
    assert run(raises(KeyboardInterrupt()), record, KeyboardInterrupt)["outcome"] == "interrupted"
    assert run(raises(typer.Exit(130)), record, typer.Exit)["outcome"] == "interrupted"
    failed = run(raises(ValueError("3 of 4\nin /tmp/x/y.json")), record, ValueError)
    assert (failed["outcome"], failed["error"]) == ("failed", "ValueError: 3 of 4 in …/y.json")
    assert run(raises(typer.Exit(13)), record, typer.Exit)["error"] == "exit code 13"
    (root / "earl" / "code.py").write_text("4\n")
    refused = run(lambda _: pytest.fail("it was started"), record, UncommittedTree)
    assert refused["outcome"] == "refused" and "earl/code.py" in refused["error"]
    assert run(lambda folder: publish("x", {}, folder, as_json=False), tmp_path)["outcome"] == "elsewhere"
    assert not any(str(tmp_path) in line for line in path.read_text().splitlines())


def test_a_start_without_an_end_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    killed, done = RunLog(path), RunLog(path)
    killed.start("control", [], CLEAN)
    done.start("demo", [], CLEAN)
    done.end("demo", "saved", 1.0, [])
    assert [event["id"] for event in unfinished(path.read_text().splitlines())] == [killed.id]


def test_a_record_that_cannot_be_written_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunLog(tmp_path / "missing" / "runs.jsonl").start("x", [], CLEAN)
    assert "this start is not recorded" in capsys.readouterr().err
    RunLog(None).start("x", [], CLEAN)
    assert capsys.readouterr().err == ""


def test_what_is_recorded_names_no_folder_of_the_machine() -> None:
    assert public("--results /tmp/a/b --runs-dir=/home/me/runs") == "--results …/b --runs-dir=…/runs"
    assert public(f"{run_log.ROOT}/examples/x.toml at 1/2") == "examples/x.toml at 1/2"


def test_the_environment_and_the_checkout_decide_where_the_record_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(run_log.VARIABLE)
    assert RunLog.default(CLEAN).path == run_log.FILE and RunLog.default(Checkout(None)).path is None
    monkeypatch.setenv(run_log.VARIABLE, "")
    assert RunLog.default(CLEAN).path is None


def test_a_command_below_another_one_is_recorded_with_its_arguments(
    record: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(run_log.VARIABLE, str(tmp_path / "runs.jsonl"))
    bench = app(lambda folder: publish("x", {}, folder, as_json=False))
    assert CliRunner().invoke(bench, [str(record)]).exit_code == 0
    assert not (tmp_path / "runs.jsonl").exists(), "a test's own call is recorded"
    root = typer.Typer()
    root.add_typer(bench, name="bench")
    above = typer.Typer()
    above.add_typer(root)
    done = CliRunner().invoke(above, ["bench", "bench", "--pause", str(record)])
    assert done.exit_code == 0, done.output
    start, end = lines(tmp_path / "runs.jsonl")
    assert start["name"] == "bench" and start["arguments"][0] == "--pause" and end["outcome"] == "saved"


SIGNALLED = """
import signal, sys
from pathlib import Path
from earl.cli.machine.bench import root
from benchmarks.record.checkout import Checkout
from benchmarks.record.execution import recorded
from benchmarks.record.run_log import RunLog

root()
with recorded("x", [], Path(sys.argv[1]), Checkout("0123456789ab"), RunLog(Path(sys.argv[2]))):
    print("ready", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize(
    ("number", "outcomes"), [(signal.SIGTERM, ["interrupted"]), (signal.SIGKILL, [])], ids=["told", "killed"]
)
def test_an_ended_process_is_recorded_and_a_killed_one_is_visible(
    tmp_path: Path, number: signal.Signals, outcomes: list[str]
) -> None:
    path = tmp_path / "runs.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", SIGNALLED, str(tmp_path), str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(os.environ),
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(number)
        process.wait(60)
    assert [line["outcome"] for line in lines(path) if line["event"] == "end"] == outcomes
    assert len(unfinished(path.read_text().splitlines())) == 1 - len(outcomes)


# --- the machine ----------------------------------------------------------------------------


def test_the_machine_says_what_it_computes_natively(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor : 0\nflags\t\t: fpu avx2 avx512f avx512_bf16\nprocessor : 1\nflags\t\t: fpu\n"
    )
    monkeypatch.setattr(processor, "CPUINFO", cpuinfo)
    found = described()
    assert found["instruction_sets"] == ["avx2", "avx512f", "avx512_bf16"] and found["native_bfloat16"]
    assert machine_class().endswith(", bfloat16")
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "none")
    assert (described()["instruction_sets"], described()["native_bfloat16"]) == ([], False)
    assert isinstance(found["gpus"], list)


def test_load_is_what_others_do(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 100 600 100 0 0 100 50 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    hertz = os.sysconf("SC_CLK_TCK")
    assert processor_seconds(stat) == (300 / hertz, 1000 / hertz)
    assert processor_seconds(tmp_path / "none") is None
    found = load()
    assert (found["load_1m"] is not None and found["busy_share"] is None) or 0 <= (
        found["busy_share"] or 0
    ) <= 1
