"""The stack's plan, run directories, ports, and what a process's end is made of."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from earl.config.load import load_run
from earl.config.run import RunConfig
from earl.dispatch.memory.arena_file import arena_directory
from earl.errors import BusUnavailable, ConfigError, EngineLost, EnvProtocolError, PortInUse
from earl.stack import leftovers, warden
from earl.stack.plan import plan
from earl.stack.ports import free_port, resolve_bind
from earl.stack.process import error_of_exit_code, readable
from earl.stack.record import LaunchRecord, read_record, write_record
from earl.stack.run_files import replace
from earl.stack.rundir import RunDirectory, free_name, to_toml
from earl.stack.starter import ReadyLine, ready_line
from tests.support.paths import ROOT

TICTACTOE = ROOT / "examples" / "tictactoe.toml"


def config(tmp_path: Path, **overrides: str) -> RunConfig:
    given = [(key.replace("__", "."), value) for key, value in overrides.items()]
    return load_run(TICTACTOE, [("runs_dir", str(tmp_path)), *given])


# --- plan -----------------------------------------------------------------------------------


def test_a_plan_starts_each_process_after_what_it_needs(tmp_path: Path):
    given = config(tmp_path, rollout__workers="2", environment__hosts="2")
    specs = plan(given, tmp_path / "run.json")
    names = [spec.name for spec in specs]
    assert names == [
        "valkey", "model", "scheduler", "gateway", "env-0", "env-1", "trainer", "rollout-0", "rollout-1",
        "dashboard",
    ]  # fmt: skip
    for index, spec in enumerate(specs):
        assert set(spec.needs) <= set(names[:index])
    by_name = {spec.name: spec for spec in specs}
    # A process is stopped no later than those that it needs (a job has ended long before).
    for spec in specs:
        served = [by_name[name] for name in spec.needs if not by_name[name].job]
        assert all(spec.stop_rank <= need.stop_rank for need in served)


def test_layouts_are_measured_before_the_workers_begin_where_there_are_some_to_choose_from(tmp_path: Path):
    specs = {spec.name: spec for spec in plan(config(tmp_path, rollout__engines="2"), tmp_path / "run.json")}
    assert specs["profile"].job and specs["profile"].needs == ("model",)
    for name in ("trainer", "rollout-0"):
        assert "profile" in specs[name].needs and "model" not in specs[name].needs
    assert "profile" not in specs["scheduler"].needs


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"trainer__ranks": "2", "scheduler__selector": "static"},
        {"trainer__ranks": "2", "scheduler__profile_s": "0"},
        {"trainer__ranks": "2", "scheduler__profile": str(ROOT / "examples/selector/profile.csv")},
        {"reference__dp": "2"},
    ],
)
def test_nothing_is_measured_where_nothing_would_be_decided_by_it(tmp_path: Path, overrides: dict[str, str]):
    assert "profile" not in [spec.name for spec in plan(config(tmp_path, **overrides), tmp_path / "run.json")]


def test_the_run_goes_on_without_its_dashboard_and_may_have_none(tmp_path: Path):
    specs = plan(config(tmp_path), tmp_path / "run.json")
    assert [spec.name for spec in specs if spec.expendable] == ["dashboard"]
    none = plan(config(tmp_path, dashboard__bind=""), tmp_path / "run.json")
    assert [spec.name for spec in none] == [spec.name for spec in specs if not spec.expendable]


def test_each_process_has_the_least_role_that_does(tmp_path: Path):
    given = config(tmp_path, trainer__kl_coefficient="0.1", obs__sinks='["wandb"]')
    roles = {spec.name: spec.role for spec in plan(given, tmp_path / "run.json")}
    assert roles == {
        "valkey": "", "model": "", "sink-wandb": "", "env-0": "environment", "dashboard": "viewer",
        **dict.fromkeys(("scheduler", "gateway", "trainer", "reference", "rollout-0"), "worker"),
    }  # fmt: skip


def test_whoever_needs_others_waits_for_the_launchers_word(tmp_path: Path):
    given = config(tmp_path, trainer__kl_coefficient="0.1")
    for spec in plan(given, tmp_path / "run.json"):
        module = find_spec(
            f"{spec.arguments[1]}.__main__" if is_package(spec.arguments[1]) else spec.arguments[1]
        )
        assert module is not None and module.origin is not None
        # Services share one beginning, and stages another, which wait.
        waits = re.search(r"\b(await_peers|service_main|stage_main)\(", Path(module.origin).read_text())
        assert waits or not spec.needs, spec.name


def is_package(name: str) -> bool:
    found = find_spec(name)
    return found is not None and found.submodule_search_locations is not None


def test_a_reference_stage_runs_only_where_the_loss_wants_it(tmp_path: Path):
    assert "reference" not in [spec.name for spec in plan(config(tmp_path), tmp_path / "run.json")]
    specs = plan(config(tmp_path, trainer__kl_coefficient="0.1"), tmp_path / "run.json")
    stage = next(spec for spec in specs if spec.name == "reference")
    assert stage.arguments[:2] == ("-m", "services.trainer.reference")
    assert stage.restartable and stage.ends_with_run
    assert set(stage.needs) == {"model", "scheduler", "valkey"}


def test_a_server_of_ones_own_and_hosts_from_outside_start_neither(tmp_path: Path):
    given = config(tmp_path, bus__redis_url="redis://127.0.0.1:6379", environment__serve="")
    names = [spec.name for spec in plan(given, tmp_path / "run.json")]
    assert "valkey" not in names
    assert not any(name.startswith("env-") for name in names)


# --- run directory --------------------------------------------------------------------------


def test_a_run_directory_is_taken_once_and_resumed_on_request(tmp_path: Path):
    given = config(tmp_path)
    with pytest.raises(ConfigError, match="no run to resume"):
        RunDirectory(given, resume=True)
    with RunDirectory(given, resume=False) as directory:
        directory.write(given, given)
        with pytest.raises(ConfigError, match="in use by another"):
            RunDirectory(given, resume=True)
    with pytest.raises(ConfigError, match=r"exists already; continue it with: earl resume .*, or .*--name"):
        RunDirectory(given, resume=False)
    with RunDirectory(load_run(directory.run_toml), resume=True) as again:
        assert again.path == directory.path


def test_a_start_that_failed_leaves_its_logs_and_frees_the_name(tmp_path: Path):
    given = config(tmp_path)
    with RunDirectory(given, resume=False) as directory:
        directory.write(given, given)
        directory.log("scheduler").write_text("it went wrong\n")
        directory.clear()
    assert directory.log("scheduler").read_text() == "it went wrong\n"
    with RunDirectory(given, resume=False):
        pass


def test_what_lies_where_a_file_is_made_is_not_written_into(tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (tmp_path / ".run.json.new").symlink_to(elsewhere)
    replace(tmp_path / "run.json", "secret")
    assert elsewhere.read_text() == "mine" and (tmp_path / "run.json").read_text() == "secret"
    (tmp_path / ".run.json.new").write_text("left by a process that was killed")  # readable by others
    replace(tmp_path / "run.json", "secret")
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600


def test_another_model_does_not_continue_a_run(tmp_path: Path):
    given = config(tmp_path)
    with RunDirectory(given, resume=False) as directory:
        directory.write(given, given)
    other = config(tmp_path, model__scratch__layers="3")
    with pytest.raises(ConfigError, match="model differs from the run"):
        RunDirectory(other, resume=True)
    longer = config(tmp_path, scheduler__steps="500")
    with RunDirectory(longer, resume=True):
        pass


def test_why_a_launch_failed_is_kept_until_the_next_one(tmp_path: Path):
    given = config(tmp_path)
    with RunDirectory(given, resume=False) as directory:
        directory.write(given, given)
        directory.failed(EngineLost("engine 0 is gone", "look at its log"))
    said = json.loads((directory.path / "failure.json").read_text())
    assert said == {"error": "EngineLost", "message": "engine 0 is gone", "exit_code": 14}
    with RunDirectory(given, resume=True) as directory:
        directory.write(given, given)
    assert not (directory.path / "failure.json").exists()


def test_a_free_name_skips_runs_that_are_there(tmp_path: Path):
    given = config(tmp_path)
    assert free_name(given, "demo") == "demo"
    for name in ("demo", "demo-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").touch()
    assert free_name(given, "demo") == "demo-3"


def test_the_saved_run_file_says_the_same(tmp_path: Path):
    given = config(
        tmp_path,
        model__observation_prefix='"quoted"\n\t\\ ünï',
        environment__task__levels='{ "a b" = [1, 2] }',
    )
    table = given.model_dump(mode="json")
    assert table["model"].pop("shape") is None  # TOML has no null
    assert tomllib.loads(to_toml(table)) == table
    assert RunConfig.model_validate(tomllib.loads(to_toml(table))) == given


# --- ports and ends -------------------------------------------------------------------------


def test_a_port_is_chosen_once_and_a_taken_one_is_refused():
    assert not resolve_bind("127.0.0.1:0", "gateway.bind").endswith(":0")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=rf'gateway\.bind = "127\.0\.0\.1:{port}".*in use.*free the port'):
            resolve_bind(f"127.0.0.1:{port}", "gateway.bind")
    with pytest.raises(ConfigError, match="is no address"):
        resolve_bind("localhost", "scheduler.bind")


def test_no_outgoing_connection_can_take_a_port_that_was_given():
    given = [free_port("127.0.0.1") for _ in range(200)]
    assert len(set(given)) == len(given)
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [port for port in given if first <= port <= last]


def test_an_address_of_no_interface_is_refused_at_once():
    with pytest.raises(PortInUse, match=r'gateway\.bind = "192\.0\.2\.1:0" cannot be used'):
        resolve_bind("192.0.2.1:0", "gateway.bind")


def test_an_exit_code_names_the_error_that_owns_it():
    assert error_of_exit_code(7) is BusUnavailable
    assert error_of_exit_code(10) is EnvProtocolError
    for code in (0, 1, 99, -9):
        assert error_of_exit_code(code) is None


def test_the_last_words_of_a_log_are_readable():
    line = '{"level": "error", "message": "it failed", "traceback": "Traceback:\\n  File x\\nTypeError: no"}'
    assert readable(line) == ["error: it failed", "Traceback:", "  File x", "TypeError: no"]
    for plain in ("Traceback", "{broken", '{"level": 1}'):
        assert readable(plain) == [plain]


def test_only_a_ready_line_is_a_ready_line():
    served = ready_line(b'{"ready": "gateway", "address": "127.0.0.1:7"}\n')
    assert served == ReadyLine(address="127.0.0.1:7", metrics="")
    for line in (b"hello\n", b'{"ready": broken\n', b'{"metrics": 1}\n'):
        assert ready_line(line) is None


def test_a_saved_run_file_can_be_resumed_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("stage\n")
    asked = config(Path("runs"), scheduler__profile="table.csv")
    with RunDirectory(asked, resume=False) as directory:
        directory.write(asked, asked)
    monkeypatch.chdir("/")
    again = load_run(tmp_path / "runs" / asked.name / "run.toml")
    assert again.scheduler.profile == str(tmp_path / "table.csv")
    assert again.runs_dir == str(tmp_path / "runs")


# --- what is left of a launch ---------------------------------------------------------------


def test_what_a_launch_left_is_found_and_removed_and_nothing_else(tmp_path: Path):
    arenas = tmp_path / "arenas"
    arenas.mkdir()
    given = config(tmp_path, data_plane__arena_dir=str(arenas))
    mark = "0123456789abcdef"
    own = tmp_path / f"earl-{mark}"
    # Of a user, of a launch with another mark, of a run in another directory.
    foreign = [tmp_path / name for name in ("precious", "earl-project", "earl-fedcba9876543210")]
    foreign.append(arena_directory(given.data_plane, tmp_path / "elsewhere" / given.name))
    for place in (arenas_of(given, tmp_path), own, *foreign):
        place.mkdir(parents=True)
        (place / "file").touch()
    directory = tmp_path / given.name
    (directory / "valkey").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(directory / "valkey" / "v.sock"))
    assert not leftovers.clean(directory, None) and own.exists()
    leaves = (str(arenas_of(given, tmp_path)), str(own), *map(str, foreign))
    assert leftovers.clean(directory, LaunchRecord(1, mark, leaves)).pids == ()
    assert not leftovers.find(directory, LaunchRecord(1, mark, leaves))
    assert all(place.exists() for place in foreign) and not own.exists()
    assert list(arenas.iterdir()) == [foreign[-1]]
    # A mark that no launch has makes no directory the launch's.
    project = (str(arenas_of(given, tmp_path)), str(tmp_path / "earl-project"))
    assert not leftovers.find(directory, LaunchRecord(1, "project", project))
    assert str(leftovers.Leftovers()) == "nothing"


def test_a_copied_directory_ends_no_process_of_the_original_run(tmp_path: Path):
    given, mark = config(tmp_path), secrets.token_hex(8)
    original, copy = tmp_path / given.name, tmp_path / "copy"
    original.mkdir()
    sockets = tmp_path / f"earl-{mark}"
    sockets.mkdir()
    write_record(original, LaunchRecord(1, mark, (str(arenas_of(given, tmp_path)), str(sockets))))
    shutil.copytree(original, copy)
    waits = [sys.executable, "-c", "input()"]
    marked = {**os.environ, warden.MARK_VARIABLE: mark}
    with subprocess.Popen(waits, env=marked, stdin=subprocess.PIPE) as process:
        assert not leftovers.find(copy, read_record(copy))
        assert not leftovers.clean(copy, read_record(copy))
        assert process.poll() is None and sockets.exists()
        assert leftovers.clean(original, read_record(original)).pids == (process.pid,)
        assert process.wait() == -signal.SIGTERM and not sockets.exists()


def arenas_of(given: RunConfig, tmp_path: Path) -> Path:
    return arena_directory(given.data_plane, tmp_path / given.name)
