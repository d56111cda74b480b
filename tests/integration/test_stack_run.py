"""`earl train` as a person meets it: whole runs of real processes, stopped, killed, resumed, and misused.

Every test ends by looking for what must not be there: a process of the run, or its shared memory.
"""

from __future__ import annotations

import csv
import json
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from earl.cli.lib.decisions import read_decisions
from earl.cli.show.parallelism import app as operator
from earl.errors import DiskFull, EpisodesFailing, UnknownEnvironment
from earl.obs.catalogue import METRICS
from earl.parallelism import Parallelism
from earl.stack.endpoints import endpoints_of
from earl.stack.ports import free_port
from earl.stack.record import read_record
from tests.support.ended import assert_told_everywhere, in_scheduler_log
from tests.support.launched import ROOT, Launched, assert_ledger_adds_up, launch_in
from tests.support.report_file import report_data

# Whole runs, some of them twice: the longest take most of a minute beside another test.
pytestmark = pytest.mark.timeout(300)
# Steps of a run in whose middle something is killed: one takes a tenth of a second, and the view says every
# two seconds how far the run is.
LONG = 60


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    with launch_in(tmp_path) as run:
        yield run


# --- whole runs -----------------------------------------------------------------------------


# One device of each: what there is to decide is known, what is measured beside it is the run's own.
PROFILE = """stage,tp,context_tokens,concurrency,tokens_per_device_s,peak_memory_fraction
rollout,1,16,4,2000,0.1
rollout,1,256,16,3000,0.2
trainer,1,16,16,20000,0.1
trainer,1,256,16,10000,0.2
"""


def assert_decided(launched: Launched, steps: int) -> None:
    """A decision a step for both stages, with what the run measured, shown wherever a person looks."""
    decided = read_decisions(launched.run_directory)
    assert decided.keys() == {"rollout", "trainer"}
    for lines in decided.values():
        assert [line.step for line in lines] == list(range(2, steps + 2))
        assert {line.running for line in lines} == {Parallelism()} == {line.verdict.after for line in lines}
        seen = lines[-1].seen
        assert 8 < seen.mean_tokens <= seen.max_tokens < 256 and 8 < seen.p95_tokens <= seen.max_tokens
        assert 1 <= seen.concurrency <= 16
        # A step may be over before a heartbeat has said anything of it.
        rates = [line.seen.tokens_per_device_s for line in lines]
        assert any(rates) and all(rate is None or rate > 0 for rate in rates)
        fractions = [line.seen.memory_fraction for line in lines]
        assert any(fractions) and all(fraction is None or 0 < fraction < 1 for fraction in fractions)
    kvs = [line.seen.kv for line in decided["rollout"] if line.seen.kv is not None]
    assert kvs and all(0 <= kv.used_tokens <= kv.committed_tokens <= kv.total_tokens > 0 for kv in kvs)
    assert "rollout stays with" in launched.said and "trainer stays with" in launched.said
    drawn = report_data(launched.run_directory / "report.html")["sections"]["decisions"]
    assert [stage["stage"] for stage in drawn] == ["rollout", "trainer"]
    assert all(len(stage["history"]["lengths"]["mean"]) == steps for stage in drawn)
    told = subprocess.run(
        [sys.executable, "-c", "from earl.cli.show.explain import app; app()", str(launched.run_directory)],
        capture_output=True, text=True, check=True, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert f"rollout, step {steps + 1} (decided after step {steps}, 1 device)" in told.stdout


def assert_metrics_are_served(launched: Launched) -> None:
    """Each service shows what is its own, all of it in the catalogue."""
    endpoints = endpoints_of(launched.run_directory)
    assert endpoints.keys() == {"scheduler", "gateway", "trainer", "rollout-0"}
    values: dict[tuple[str, ...], float] = {}
    for process, address in endpoints.items():
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            for family in text_string_to_metric_families(answer.read().decode()):
                if family.name.startswith("earl_"):
                    known = METRICS.get(family.name) or METRICS[f"{family.name}_total"]
                    assert known.name.split("_")[1] in (process.split("-")[0], "rpc", "build")
                values |= {(one.name, *sorted(one.labels.values())): one.value for one in family.samples}
    assert values["earl_scheduler_phase", "train"] == 1
    assert values["earl_scheduler_tickets", "trained"] >= 2 * 16
    assert values["earl_scheduler_workers", "rollout"] == 1
    assert values["earl_gateway_hosts",] == 1
    assert values["earl_gateway_step_seconds_count", "open_spiel/tic_tac_toe"] > 100
    assert values["earl_rollout_generated_tokens_total", "0"] > 0
    assert values["earl_rollout_transfer_bytes_total", "shm"] > 0
    assert values["earl_trainer_transfer_bytes_total", "shm"] > 0
    assert values["earl_trainer_phase_seconds_total", "training"] > 0
    assert values["earl_rpc_requests_total", "OK", "earl.v1.SchedulerService/CommitBatch"] >= 2


def test_a_run_trains_decides_evaluates_and_leaves_a_report(launched: Launched):
    profile = launched.directory / "table.csv"
    profile.write_text(PROFILE)
    code, figures = launched.start(scheduler__steps="4", scheduler__profile=str(profile)).finish()
    assert code == 0, launched.said
    assert_ledger_adds_up(figures)
    assert figures["trained"] == 2 * 16 + 4 * 16
    assert figures["evaluated"] == 2 * 16
    assert (figures["replayed"], figures["dropped"], figures["live"]) == (0, 0, 0)
    assert figures.keys() == {
        "win_rate", "win_low", "win_high", "mean_reward", "reward_low", "reward_high", "gain", "gain_low",
        "gain_high", "gain_episodes", "best_version", "illegal_rate", "seconds", "run_seconds",
        "start_win_rate", "start_mean_reward", "issued", "trained", "replayed", "evaluated", "dropped",
        "live", "seed",
    }  # fmt: skip
    report = report_data(launched.run_directory / "report.html")
    assert "rollout-0" in {row["who"] for row in report["answers"]["busy"]["rows"]}
    # Lengths of every step, intervals of both evaluations, and the same tasks before and after training.
    learning, lengths = report["sections"]["learning"], report["sections"]["lengths"]
    assert [column["last"] for column in lengths["columns"]] == [1, 2, 3, 4]
    assert [shown["name"] for shown in learning["evaluations"]] == ["start", "final"]
    assert all(None not in shown["mean_reward"] for shown in learning["evaluations"])
    tasks = [{one["index"] for one in report["trajectories"] if one["evaluation"] == name}
             for name in ("start", "final")]  # fmt: skip
    assert tasks[0] == tasks[1] != set()
    assert figures["gain_low"] <= figures["gain"] <= figures["gain_high"] and figures["gain_episodes"] == 16
    assert_decided(launched, 4)
    launched.assert_nothing_left()


@pytest.mark.slow
def test_a_run_is_resharded_while_it_trains_and_loses_nothing(launched: Launched):
    """Rollout from two engines to one over both devices, and the trainer's two ranks, by hand."""
    launched.start(
        scheduler__steps="9999",
        scheduler__profile_s="0",
        rollout__engines="2",
        rollout__standby="true",
        trainer__ranks="2",
        evaluation__episodes="0",
    )
    launched.until(r"train [1-9]\d*/")
    for name in ("rollout", "trainer"):
        arguments = ["set", name, "tp=2", "--pin", "--json", "--run", str(launched.run_directory)]
        answer = json.loads(CliRunner().invoke(operator, arguments, catch_exceptions=False).output)
        switch, stage = answer["outcome"], answer["stage"]
        assert (switch["before"], switch["after"], switch["rolled_back"]) == ("dp2", "tp2", False), switch
        assert stage["running"] == "tp2" and stage["pinned"] and stage["epoch"] == answer["epoch"] == 1
        launched.until(rf"{name} switched from dp2 to tp2 .*\(epoch 1\)")
    launched.until(r"train [1-9]\d*/")
    launched.until(r"train [1-9]\d*/")
    assert launched.process is not None
    launched.process.send_signal(signal.SIGHUP)
    code, figures = launched.finish()
    assert code == 130, launched.said
    assert "\nearl: stopped by its terminal, which was closed after " in launched.said
    assert_ledger_adds_up(figures)
    assert figures["dropped"] == 0
    for line in map(json.loads, (launched.run_directory / "switches.jsonl").open()):
        assert line["by"] == "operator" and line["seconds"] >= line["stall_s"] >= 0
        assert line["max_logprob_difference"] < 1e-3
    metrics = [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").open()]
    for name in ("rollout", "trainer"):
        tps = [line["parallelism"][name]["tp"] for line in metrics if name in line["parallelism"]]
        assert tps[0] == 1 and tps[-1] == 2 and tps == sorted(tps)
    assert figures["trained"] == sum(line["sequences"] for line in metrics)
    assert report_data(launched.run_directory / "report.html")["sections"]["lengths"]["switches"]
    launched.assert_nothing_left()


RELAY = {
    "environment.name": "relay/digits",
    "environment.serve": "earl.env.adapters.relay:environments",
    "environment.task": "{digits = 40, turns = 1}",
    "model.scratch.words": json.dumps([*"0123456789[].>"]),
    # Pages of the KV cache are of 16 tokens then.
    "model.scratch.hidden_size": "256",
    "rollout.engines": "2",
    "rollout.kv_tokens": "32",
    "evaluation.episodes": "0",
    "scheduler.profile_s": "0",
}


@pytest.mark.slow
def test_a_sequence_that_no_engine_holds_waits_for_larger_ones(launched: Launched):
    """46 tokens where an engine of tp 1 holds 32, without a profile."""
    code, figures = launched.start(scheduler__steps="6", **RELAY).finish()
    assert code == 0, launched.said
    assert_ledger_adds_up(figures)
    assert (figures["trained"], figures["dropped"], figures["live"]) == (2 * 16 + 6 * 16, 0, 0)
    metrics = [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").open()]
    assert not any(line["truncated_episodes"] for line in metrics)
    [line] = [json.loads(line) for line in (launched.run_directory / "switches.jsonl").open()]
    assert line["by"] == "selector" and not line["rolled_back"] and line["after"]["tp"] == 2
    assert line["reason"].endswith("no engine of dp2 holds a sequence of 46 tokens")
    launched.assert_nothing_left()


@pytest.mark.slow
def test_with_nobody_to_switch_such_a_run_ends(launched: Launched):
    code, _ = launched.start(scheduler__steps="6", scheduler__selector="static", **RELAY).finish()
    assert code == EpisodesFailing.exit_code
    assert "exceed the 32 tokens that the KV cache holds" in launched.said
    launched.assert_nothing_left()


def test_ctrl_c_saves_says_how_to_resume_and_the_run_goes_on(launched: Launched):
    launched.forked = True
    launched.start(scheduler__steps="400").until(r"train [1-9]\d*/")
    assert launched.process is not None
    assert_metrics_are_served(launched)
    launched.process.send_signal(signal.SIGINT)
    code, figures = launched.finish()
    assert code == 130, launched.said
    assert_ledger_adds_up(figures)
    assert endpoints_of(launched.run_directory) == {}
    launched.assert_nothing_left()
    trained = figures["trained"]
    assert trained >= 2 * 16 + 16
    reason = f"stopped by Ctrl-C after {(trained - 2 * 16) // 16} of 400 steps"
    resume = f"resume with: earl resume {launched.run_directory}"
    assert launched.said.splitlines()[-1] == f"earl: {reason}; {resume}"
    assert_told_everywhere(launched.run_directory, reason, 21)
    assert in_scheduler_log(launched.run_directory, reason)

    # The saved run file is the whole of it: here it asks for a few steps more than were done.
    toml = launched.run_directory / "run.toml"
    steps = (trained - 2 * 16) // 16 + 3
    toml.write_text(toml.read_text().replace("steps = 400", f"steps = {steps}"))
    code, figures = launched.resume().finish()
    assert code == 0, launched.said
    assert_ledger_adds_up(figures)
    assert figures["trained"] == 2 * 16 + steps * 16
    launched.assert_nothing_left()


def test_killed_workers_are_replaced_and_nothing_is_trained_twice(launched: Launched):
    launched.forked = True
    launched.start(scheduler__steps=str(LONG)).until(r"train [1-9]\d*/")
    launched.kill("services.rollout ")
    launched.until("rollout-0 ready")
    launched.kill("services.trainer")
    launched.until("trainer ready")
    code, figures = launched.finish()
    assert code == 0, launched.said
    assert_ledger_adds_up(figures)
    # What the restored checkpoint did not hold was dropped and issued again: no step is missing or double.
    assert figures["trained"] == 2 * 16 + LONG * 16
    assert figures["live"] == 0
    launched.assert_nothing_left()


@pytest.mark.slow
def test_a_killed_scheduler_is_replaced_and_nothing_is_lost(launched: Launched):
    launched.start(scheduler__steps=str(LONG)).until(r"train [1-9]\d*/")
    launched.kill("services.scheduler")
    launched.until("scheduler ready")
    code, figures = launched.finish()
    assert code == 0, launched.said
    assert_ledger_adds_up(figures)
    assert figures["trained"] == 2 * 16 + LONG * 16
    assert (figures["dropped"], figures["live"]) == (0, 0)  # nothing was rolled back
    metrics = [json.loads(line) for line in (launched.run_directory / "metrics.jsonl").open()]
    assert {line["step"] for line in metrics if line["phase"] == "train"} == set(range(1, LONG + 1))
    launched.assert_nothing_left()


@pytest.mark.slow
def test_a_killed_launcher_leaves_nothing_and_can_be_resumed(launched: Launched):
    launched.start(scheduler__steps=str(LONG)).until(r"train \d+/")
    watched = [psutil.Process(pid) for pid in launched.processes()]
    assert launched.process is not None
    launched.process.kill()
    launched.process.communicate()
    _, alive = psutil.wait_procs(watched, timeout=20)
    assert alive == []
    launched.assert_nothing_left()
    code, figures = launched.resume().finish()
    assert code == 0, launched.said
    assert_ledger_adds_up(figures)
    assert figures["trained"] == 2 * 16 + LONG * 16
    launched.assert_nothing_left()


@pytest.mark.slow
def test_a_killed_valkey_ends_the_run_which_can_be_resumed(launched: Launched):
    launched.start(scheduler__steps=str(LONG)).until(r"train [1-9]\d*/")
    launched.kill("earl.stack.valkey")
    code, _ = launched.finish()
    assert code != 0, launched.said
    launched.assert_nothing_left()
    code, figures = launched.resume().finish()
    assert code == 0, launched.said
    assert_ledger_adds_up(figures)
    assert figures["trained"] == 2 * 16 + LONG * 16
    launched.assert_nothing_left()


@pytest.mark.slow
def test_a_run_that_fails_keeps_why_until_it_is_resumed(launched: Launched):
    launched.start(scheduler__steps=str(LONG), stack__restarts="0").until(r"train [1-9]\d*/")
    launched.kill("services.rollout ")
    code, _ = launched.finish()
    assert code == 13, launched.said
    failure = json.loads((launched.run_directory / "failure.json").read_text())
    assert (failure["error"], failure["exit_code"]) == ("ProcessFailed", 13)
    assert "rollout-0 was ended by SIGKILL" in failure["message"]
    record = read_record(launched.run_directory)
    assert record is not None
    reason = f"failed after {record.status.step} of {LONG} steps: ProcessFailed: {failure['message']}"
    assert f"\nearl: {reason}\n" in launched.said
    assert launched.said.splitlines()[-1].startswith(f"earl: error: {failure['message']}; ")
    assert_told_everywhere(launched.run_directory, reason, 22)
    code, _ = launched.resume().finish()
    assert code == 0, launched.said
    assert not (launched.run_directory / "failure.json").exists()
    ends = [json.loads(line) for line in (launched.run_directory / "endings.jsonl").open()]
    # 16 a step; those of a step that was rolled back count again.
    assert sum(line["ok"] for line in ends) >= LONG * 16
    launched.assert_nothing_left()


# --- bad input ------------------------------------------------------------------------------


def assert_refused(launched: Launched, code: int, *words: str, **overrides: str) -> None:
    """One line of error with the value and the remedy, the documented exit code, and nothing left.

    overrides: keys of a run that is launched in this process, where none was begun in one of its own.
    """
    if launched.process is None:
        assert launched.run_here(**overrides) == code, launched.said
    else:
        assert launched.finish() == (code, {}), launched.said
    errors = [line for line in launched.said.splitlines() if line.startswith("earl: error: ")]
    assert len(errors) == 1 and launched.said.endswith(errors[0] + "\n")
    assert all(word in errors[0] for word in words), errors[0]
    assert "Traceback" not in launched.said
    launched.assert_nothing_left()
    if launched.run_directory.exists():  # the logs that the error points to, and nothing half-made
        assert {entry.name for entry in launched.run_directory.iterdir()} <= {"logs", "launcher.lock"}


@pytest.mark.parametrize("section", ["scheduler", "gateway", "rollout", "trainer"])
def test_a_port_that_is_taken(launched: Launched, section: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = {f"{section}__bind": f"127.0.0.1:{port}"}
        assert_refused(launched, 5, f'{section}.bind = "127.0.0.1:{port}"', "free the port", **given)
    assert not launched.run_directory.exists()  # it was found before anything was started


def test_a_redis_that_is_not_there(launched: Launched):
    port = free_port("127.0.0.1")
    given = {"bus__redis_url": f"redis://:secret@127.0.0.1:{port}"}
    assert_refused(launched, 7, f"127.0.0.1:{port}", "start the server or correct bus.redis_url", **given)
    assert "secret" not in launched.said


def test_an_incomplete_model_directory(launched: Launched):
    model = launched.directory / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4}))
    assert_refused(launched, 3, str(model), model__path=str(model))


def test_an_environment_that_names_itself_twice(launched: Launched):
    source = """
    from earl.env.base import Environment

    class One(Environment):
        name = "twice"
        def reset(self, seed, task): return "go"
        def step(self, action): raise NotImplementedError

    class Two(One):
        pass

    def environments():
        return [One, Two]
    """
    (launched.directory / "doubled.py").write_text(textwrap.dedent(source))
    given = {"environment__name": "twice", "environment__serve": "doubled:environments"}
    assert_refused(launched, 10, "twice", **given)


def test_an_environment_that_nobody_serves(launched: Launched):
    launched.forked = True
    launched.start(environment__name="open_spiel/tictactoe")
    assert_refused(launched, 2, "'open_spiel/tictactoe'", "it serves open_spiel/connect_four, open_spiel/tic")


FAULTY = """
from earl.env.base import Environment, Observation, StepResult

class NotANumber(Environment):
    name = "faulty"
    blocking = False
    def reset(self, seed, task):
        return Observation("0", ["[0]"])
    def step(self, action):
        return StepResult("0", float("nan"), done=True)

class BadTask(NotANumber):
    def reset(self, seed, task):
        raise ValueError("task has no 'level'")
"""


@pytest.mark.parametrize(
    ("environment", "fault"),
    [pytest.param("NotANumber", "reward", marks=pytest.mark.slow), ("BadTask", "task has no 'level'")],
)
def test_an_environment_that_always_fails_ends_the_run(launched: Launched, environment: str, fault: str):
    (launched.directory / "faulty.py").write_text(textwrap.dedent(FAULTY))
    returned = launched.run_here(
        environment__name="faulty",
        environment__serve=f"faulty:{environment}",
        gateway__quarantine_s="0.2",
        scheduler__attempts="1",
        scheduler__give_up_after="8",
    )
    assert returned == 15, launched.said
    errors = [line for line in launched.said.splitlines() if line.startswith("earl: error: ")]
    assert len(errors) == 1 and "'faulty'" in errors[0] and fault in errors[0] and "--resume" in errors[0]
    launched.assert_nothing_left()


def test_environments_that_cannot_be_imported(launched: Launched):
    assert_refused(launched, 2, "no.such.module", environment__serve="no.such.module:environments")


def test_a_run_that_exists_is_not_overwritten(launched: Launched):
    launched.run_directory.mkdir()
    (launched.run_directory / "metrics.jsonl").write_text("{}\n")
    launched.start()
    code, _ = launched.finish()
    assert code == 2
    assert f"run directory {launched.run_directory} exists already" in launched.said
    assert (launched.run_directory / "metrics.jsonl").read_text() == "{}\n"


@pytest.mark.slow
def test_a_launch_measures_what_is_soon_measured_and_the_selector_decides_by_it(
    launched: Launched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Rollout's two layouts, whatever else the machine does meanwhile."""
    monkeypatch.setenv("EARL_CACHE", str(tmp_path / "cache"))
    given = {"scheduler__steps": "3", "evaluation__episodes": "0", "rollout__engines": "2"}
    code, figures = launched.start(**given, scheduler__profile_s="200").finish()
    assert code == 0, launched.said
    said = (launched.run_directory / "logs" / "profile.log").read_text()
    assert "measuring 2 layouts of rollout" in said and "rollout tp2" in said
    assert {"rollout"} == {
        line["stage"] for line in csv.DictReader((launched.run_directory / "profile.csv").open())
    }
    decisions = [json.loads(line) for line in (launched.run_directory / "decisions.jsonl").open()]
    assert decisions and {one["stage"] for one in decisions} == {"rollout"}
    assert figures["dropped"] == 0
    launched.assert_nothing_left()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.slow
def test_a_disk_that_becomes_full_ends_the_run_with_that_reason_and_it_can_be_resumed(small_disk: Path):
    filler = small_disk / "filler"
    with launch_in(small_disk) as launched, filler.open("wb") as file:
        # What is freed for the resume, also if the run itself has filled the rest by then.
        file.write(bytes(32 << 20))
        file.flush()
        launched.start(scheduler__steps="9999", evaluation__episodes="0")
        launched.until(r"train [1-9]")
        with suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        with suppress(OSError):
            file.close()
        code, _ = launched.finish()
        assert code == DiskFull.exit_code, launched.said
        assert f"the disk of {launched.run_directory} is full (" in launched.said
        record = read_record(launched.run_directory)
        assert record is not None and record.outcome == "failed"
        failure = json.loads((launched.run_directory / "failure.json").read_text())
        assert failure["error"] == "DiskFull" and failure["exit_code"] == 25
        filler.unlink()
        launched.resume()
        launched.until(r"train [1-9]")
        assert launched.process is not None
        launched.process.send_signal(signal.SIGINT)
        code, figures = launched.finish()
        assert code == 130, launched.said
        assert_ledger_adds_up(figures)
        launched.assert_nothing_left()


def waited_s(launched: Launched) -> int:
    """Seconds for which the run has had no host, by `earl status`; 0 while it says nothing of that."""
    looked = subprocess.run(
        [sys.executable, "-m", "earl.cli.main", "status", str(launched.run_directory)],
        capture_output=True, text=True, check=False, cwd=launched.directory,
    )  # fmt: skip
    remark = r"waited (\d+) s for a host that serves the run's environment; no host is connected"
    found = re.search(remark, " ".join(looked.stdout.split()))
    return int(found[1]) if found else 0


@pytest.mark.slow
def test_a_run_waits_for_a_host_that_comes_late_and_loses_no_attempt(launched: Launched):
    """Nothing is played before the host is there; nothing is given up, and status says what is missing."""
    given = {"environment__serve": "", "environment__queue_s": "1"}
    launched.start(scheduler__steps="2", evaluation__episodes="0", **given)
    launched.until("rollout-0 ready")
    ends = time.monotonic() + 60
    while waited_s(launched) < 4:  # four times what a session waits for a host
        assert time.monotonic() < ends
    gateway = json.loads((launched.run_directory / "run.json").read_text())["gateway"]["bind"]
    serve = ["env", "serve", "earl.env.adapters.open_spiel:environments", "--gateway", gateway]
    host = subprocess.Popen([sys.executable, "-m", "earl.cli.main", *serve], cwd=launched.directory)
    try:
        code, figures = launched.finish()
    finally:
        host.terminate()
        host.wait(20)
    assert code == 0, launched.said
    assert_ledger_adds_up(figures)
    assert figures["dropped"] == 0
    endings = [json.loads(line) for line in (launched.run_directory / "endings.jsonl").open()]
    assert endings and not any(line["infra_error"] or line["timeout"] for line in endings)
    launched.assert_nothing_left()


@pytest.mark.slow
def test_a_run_whose_host_never_comes_ends_and_says_what_to_start(launched: Launched):
    code, _ = launched.start(environment__serve="", environment__wait_s="2").finish()
    assert code == UnknownEnvironment.exit_code, launched.said
    assert "no host served 'open_spiel/tic_tac_toe' within 2 s; no host is connected" in launched.said
    assert "earl env serve MODULE:CLASS --gateway 127.0.0.1:" in launched.said
    launched.assert_nothing_left()
