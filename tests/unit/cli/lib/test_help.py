"""`earl --help`: what it imports, and that it fits the terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

from earl.cli.lib.help_page import Panel, help_page
from earl.cli.lib.lazy import commands_of

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


def test_status_and_top_do_without_the_run_file_s_schema():
    modules = "earl.cli.show.status, earl.cli.top.command, earl.cli.show.ls"
    code = f"import sys, {modules}\nprint(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    heavy = {"earl.config.run", "earl.stack.launcher", "earl.cli.report", "torch", "numpy", "textual"}
    assert not heavy & set(done.stdout.split())


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
def test_a_short_option_shows_the_help(words: tuple[str, ...]):
    short, long = typed(*words, "-h"), typed(*words, "--help")
    assert short.returncode == 0 and short.stdout == long.stdout != ""


def test_the_former_name_of_stop_is_an_alias():
    assert typed("down", "--help").stdout == typed("stop", "--help").stdout != ""


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
