"""`earl up` and `earl stop` as a person meets them: whole runs in the background, ended, killed, refused.

Every test ends by looking for what must not be there: a process of the run, a socket, its shared memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from earl.cli.lib.snapshot import RunMonitor
from earl.cli.top.screen import Top
from earl.cli.top.section import TableSection
from earl.stack.ports import free_port
from earl.stack.record import is_held, read_record
from tests.support.launched import MARK, ROOT, SMALL, TICTACTOE
from tests.unit.cli.top.test_top import screen_of

WAIT_S = 60.0


@dataclass
class Background:
    """A run below `directory`, its processes marked in the environment."""

    directory: Path
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:10]}")

    @property
    def run(self) -> Path:
        return self.directory / self.name

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        module, *rest = arguments
        code = f"import sys; from {module} import app; app(args=sys.argv[1:], standalone_mode=True)"
        if module == "earl.cli.main":
            code = "from earl.cli.main import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, *rest],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env={
                **os.environ,
                MARK: self.name,
                "EARL_CACHE": str(self.directory / "cache"),
                "PYTHONPATH": f"{self.directory}{os.pathsep}{ROOT}",
            },
        )

    def earl(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """(exit code, the JSON of standard output, standard error) of one command."""
        process = self.popen("earl.cli.main", *arguments)
        out, said = process.communicate(timeout=110)
        lines = out.splitlines()
        return process.returncode, json.loads(lines[-1]) if lines else {}, said

    def up_arguments(self, **overrides: str) -> list[str]:
        given = (
            SMALL | {"scheduler.steps": "9999"} | {key.replace("__", "."): v for key, v in overrides.items()}
        )
        dotted = [text for key, value in given.items() for text in (f"--{key}", value)]
        return [
            "up",
            str(TICTACTOE),
            "--name",
            self.name,
            "--runs-dir",
            str(self.directory),
            *dotted,
            "--json",
        ]

    def up(self, **overrides: str) -> dict[str, Any]:
        code, began, said = self.earl(*self.up_arguments(**overrides))
        assert code == 0, said
        return began

    def processes(self) -> dict[int, str]:
        found = {}
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.name:
                    found[process.pid] = " ".join(process.cmdline())
            except psutil.Error:
                continue
        return found

    def until(self, met: Any) -> None:
        until = time.monotonic() + WAIT_S
        while not met():
            assert time.monotonic() < until, f"it never came; there are {self.processes()}"
            time.sleep(0.05)

    def assert_nothing_left(self) -> None:
        assert self.processes() == {}
        assert [name for name in os.listdir("/dev/shm") if self.name in name] == []
        assert [path for path in self.directory.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)] == []
        record = read_record(self.run)
        assert record is None or not any(os.path.lexists(path) for path in record.leaves)


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    run = Background(tmp_path)
    yield run
    for pid in run.processes():  # only after a failure
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_run_goes_on_alone_is_looked_at_ends_and_is_resumed(background: Background):
    began = background.up()
    assert is_held(background.run) and began["directory"] == str(background.run)
    assert set(began["addresses"]) >= {"scheduler", "gateway"}
    assert {"valkey", "model", "scheduler", "gateway", "env-0", "trainer", "rollout-0"} <= set(
        began["processes"]
    )
    code, look, _ = background.earl("status", str(background.run), "--json")
    assert (code, look["state"]) == (0, "running") and look["status"]["run"] == background.name
    assert {one["state"] for one in look["processes"]} == {"ready", "done"}
    assert {one["usual_s"] for one in look["processes"]} == {0.0}, "no start before it"
    assert {stage["name"] for stage in look["status"]["stages"]} == {"rollout", "trainer"}
    assert "open_spiel/tic_tac_toe" in [one["name"] for one in look["environments"]]

    code, refused, said = background.earl(*background.up_arguments())
    assert (code, refused) == (2, {}) and "exists already" in said
    background.until(
        lambda: background.earl("status", str(background.run), "--json")[1]["status"]["phase"] == "train"
    )
    code, ended, said = background.earl("stop", str(background.run), "--json")
    assert code == 0, said
    assert (ended["was_running"], ended["outcome"]) == (True, "stopped")
    assert ended["why_ended"].startswith("stopped by SIGTERM (which earl stop sends) after ")
    assert ended["left"] == ended["remains"] == {"pids": [], "paths": []}
    background.assert_nothing_left()
    code, look, _ = background.earl("status", str(background.run), "--json")
    assert (code, look["state"]) == (21, "stopped")
    assert look["status"]["ledger"]["trained"] > 0 and (background.run / "report.html").is_file()
    log = (background.run / "logs" / "earl.log").read_text()
    assert "trainer ready" in log and f"earl: {ended['why_ended']}; resume with: earl resume" in log

    code, again, said = background.earl("up", str(background.run / "run.toml"), "--resume", "--json")
    assert code == 0, said
    assert again["directory"] == str(background.run)
    look = background.earl("status", str(background.run), "--json")[1]
    assert all(one["usual_s"] > 0 for one in look["processes"]), "the start before this one"
    code, ended, _ = background.earl("stop", "--now", str(background.run), "--json")
    assert code == 0 and ended["left"] == {"pids": [], "paths": []}
    background.assert_nothing_left()


@pytest.mark.slow
def test_a_run_that_ends_by_itself_is_complete(background: Background):
    background.up(scheduler__steps="2")
    background.until(lambda: not is_held(background.run))
    code, look, _ = background.earl("status", str(background.run), "--json")
    assert (code, look["state"]) == (20, "complete")
    code, ended, _ = background.earl("stop", str(background.run), "--json")
    assert code == 0 and not ended["was_running"] and ended["resume"] is None
    background.assert_nothing_left()


@pytest.mark.slow
async def test_top_follows_a_real_run_pins_a_stage_and_sees_its_end(background: Background):
    await asyncio.to_thread(background.up)
    app = Top(RunMonitor.of_run(background.run), every_s=0.2)
    async with app.run_test(size=(160, 60)) as pilot:

        async def shows(*words: str) -> None:
            async with asyncio.timeout(WAIT_S):
                while not all(word in "\n".join(screen_of(app)) for word in words):
                    await pilot.pause(0.1)

        await shows("running", "rollout-0", "open_spiel/tic_tac_toe", "scheduler", "tickets")
        app.query_one("#stages", TableSection).move_cursor(row=0)
        await pilot.press("p")
        await shows("(pinned)")
        code, _, said = await asyncio.to_thread(
            background.earl, "stop", "--now", str(background.run), "--json"
        )
        assert code == 0, said
        await shows("stopped")
    background.assert_nothing_left()


@pytest.mark.slow
def test_what_a_killed_launcher_and_warden_left_is_cleaned_up(background: Background):
    began = background.up()
    wardens = [pid for pid, command in background.processes().items() if "earl.stack.warden" in command]
    for pid in (*wardens, began["pid"]):
        os.kill(pid, signal.SIGKILL)
    background.until(lambda: not is_held(background.run))
    code, look, _ = background.earl("status", str(background.run), "--json")
    assert (code, look["state"]) == (23, "lost")
    assert background.processes()
    code, ended, said = background.earl("stop", str(background.run), "--json")
    assert code == 0, said
    assert not ended["was_running"] and ended["left"]["pids"] and ended["left"]["paths"]
    background.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupting_up_leaves_nothing(background: Background, number: signal.Signals):
    process = background.popen("earl.cli.main", *background.up_arguments())
    background.until(
        lambda: any("services.scheduler" in command for command in background.processes().values())
    )
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == (130 if number is signal.SIGINT else -number)
    background.until(lambda: not background.processes())
    background.assert_nothing_left()
    assert {entry.name for entry in background.run.iterdir()} <= {"logs", "launcher.lock"}


def test_a_mistake_comes_back_with_its_exit_code(background: Background):
    port = free_port("127.0.0.1")
    code, _, said = background.earl(
        *background.up_arguments(bus__redis_url=f"redis://:secret@127.0.0.1:{port}")
    )
    assert code == 7 and "start the server or correct bus.redis_url" in said.splitlines()[-1]
    assert said.count("earl: error: ") == 1 + said.count("  | earl: error: ") and "Traceback" not in said
    assert "secret" not in said
    background.assert_nothing_left()
    assert {entry.name for entry in background.run.iterdir()} <= {"logs", "launcher.lock"}
