"""`earl --help`: what it imports, and that it fits the terminal."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from earl.cli.lib.help_page import Panel, help_page
from earl.cli.lib.lazy import commands_of
from earl.stack.record import LaunchRecord, write_record
from earl.stack.status import ProcessState, RunStatus
from tests.support.launched import earl_here

# What a page of help needs nothing of.
HEAVY = ("torch", "numpy", "grpc", "google.protobuf", "pydantic", "rich", "textual", "asyncio", "services")


def typed(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\nfrom earl.cli.main import main\n"
        "try:\n    main()\nfinally:\n    sys.stderr.write(' '.join(sys.modules))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_help_imports_nothing_heavy():
    done = typed("--help")
    assert done.returncode == 0 and "Watch a run on one screen" in done.stdout
    assert not set(HEAVY) & set(done.stderr.split())


def test_top_does_without_the_run_file_s_schema():
    code = "import sys, earl.cli.top.command\nprint(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    heavy = {"earl.config.run", "earl.stack.launcher", "earl.cli.report", "torch", "numpy", "textual"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("command", ["status", "ls"])
def test_commands_typed_all_the_time_import_little(command: str, tmp_path: Path):
    """The run has ended: its record is read, its tables are drawn."""
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    services = {"name": "first", "scheduler": {"bind": "127.0.0.1:1"}, "gateway": {"bind": "127.0.0.1:1"}}
    (run / "run.json").write_text(json.dumps(services), encoding="utf-8")
    process = ProcessState("model", "done", 4.5, 0, 17)
    status = RunStatus(run="first", phase="done", step=3, steps=3)
    write_record(run, LaunchRecord(1, "m", outcome="complete", processes=(process,), status=status))
    done = typed(command, str(run if command == "status" else run.parent))
    assert "complete" in done.stdout, done.stderr[-2000:]
    loaded = set(done.stderr.split())
    heavy = {
        "pydantic", "earl.config", "earl.rpc.server", "earl.env.base", "earl.stack.launcher",
        "earl.reparallelize", "earl.cli.report", "earl.v1.rollout_pb2", "earl.v1.trainer_pb2",
        "grpc_reflection.v1alpha", "rich.live", "rich.markdown", "textual", "torch", "numpy", "services",
    }  # fmt: skip
    assert heavy & loaded == set()


def test_the_status_on_a_terminal_without_its_characters_has_question_marks(tmp_path: Path):
    services = {"name": "first", "scheduler": {"bind": "127.0.0.1:1"}, "gateway": {"bind": "127.0.0.1:1"}}
    (tmp_path / "run.json").write_text(json.dumps(services), encoding="utf-8")
    process = ProcessState("model", "done", 4.5, 0)
    status = RunStatus(run="first", phase="done", step=3, steps=3, message="\u00fcberall trainiert")
    write_record(tmp_path, LaunchRecord(1, "m", outcome="complete", processes=(process,), status=status))
    locale = {"PYTHONIOENCODING": "", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    for environment in (locale, {"PYTHONIOENCODING": "ascii"}):
        shown = typed("status", str(tmp_path), **environment)
        assert shown.returncode == 20 and shown.stdout.isascii(), shown.stderr[-2000:]
        assert "complete: ?berall trainiert" in shown.stdout and "Traceback" not in shown.stderr
        assert re.search(r"\bmodel\W+done\W.* \? ", shown.stdout), shown.stdout


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_the_help_fits_and_breaks_no_word(columns: int):
    done = typed("--help", COLUMNS=str(columns))
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= columns
    words = set(re.findall(r"[\w-]+", done.stdout))
    assert {"--version", "environments", "Perfetto", *commands_of("earl.commands")} <= words


def test_the_version_is_that_of_the_package():
    done = typed("--version")
    assert (done.returncode, done.stdout) == (0, f"earl {version('earl')}\n")


@pytest.mark.parametrize("words", [(), ("train",), ("status",), ("bench",), ("bench", "up"), ("env",)])
def test_a_short_option_shows_the_help(words: tuple[str, ...], tmp_path: Path):
    short, long = earl_here(tmp_path, *words, "-h"), earl_here(tmp_path, *words, "--help")
    assert short.returncode == 0 and short.stdout == long.stdout != ""


def test_the_former_name_of_stop_is_an_alias(tmp_path: Path):
    down, stop = (earl_here(tmp_path, name, "--help").stdout for name in ("down", "stop"))
    assert down == stop != ""


def test_a_group_without_a_command_shows_its_help_as_an_error():
    done = typed()
    assert done.returncode == 2 and not done.stdout
    assert "Usage: earl" in done.stderr and "\x1b" not in done.stderr


def test_colours_can_be_switched_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    page = "Usage: x", "About.", [Panel("Options", [("--a", "b")])], "End."
    assert "\x1b" in help_page(*page)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in help_page(*page)
