"""`earl train`: as a process of a test's own, begun anew or forked with its imports, everything that it
starts marked in the environment; or in the test's process, for starts that are refused."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from earl.cli.main import main
from earl.history.check import check
from earl.history.format import FOLDER
from tests.support.forked import begin_server
from tests.support.preloaded import ForkedCommand, preloaded

ROOT = Path(__file__).resolve().parents[2]
TICTACTOE = ROOT / "examples" / "tictactoe.toml"
MARK = "EARL_TEST_RUN"
SMALL = {
    "model.scratch.hidden_size": "32",
    "model.scratch.layers": "1",
    "model.scratch.intermediate_size": "64",
    "model.scratch.heads": "4",
    "model.scratch.kv_heads": "4",
    "warmup.minibatches": "1",
    "warmup.passes": "1",
    "trainer.minibatches": "1",
    "trainer.passes": "1",
    "warmup.batches": "2",
    "warmup.batch_episodes": "16",
    "scheduler.group_size": "4",
    "scheduler.batch_groups": "4",
    "evaluation.episodes": "16",
    "rollout.max_sequences": "16",
    "trainer.checkpoint_every": "2",
    # A process less; tests of its own start it.
    "dashboard.bind": "",
}


@dataclass
class Launched:
    """One `earl train` and everything that it starts, marked in the environment.

    forked: its processes are forked with their imports (`preloaded.py`), for tests of what a run does once it
    has started.
    """

    directory: Path
    name: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:10]}")
    process: subprocess.Popen[str] | ForkedCommand | None = None
    said: str = ""
    run_file: Path = TICTACTOE
    forked: bool = False

    @property
    def run_directory(self) -> Path:
        return self.directory / self.name

    def start(self, *arguments: str, **overrides: str) -> Launched:
        self._popen(*self._new_run(overrides), *arguments)
        return self

    def run_here(self, **overrides: str) -> int:
        """`earl train` to its end in this process (`earl_here`), for a run that fails; the exit code.

        What the warden and the supervisor find by the mark in an environment, they do not find of a forked
        process. Standard error is `said`.
        """
        words = ["train", *self._new_run(overrides), "--plain", "--json"]
        done = earl_here(self.directory, *words, variables=self._environment())
        self.said = done.stderr
        assert done.stdout == ""
        return done.returncode

    def _new_run(self, overrides: dict[str, str]) -> list[str]:
        given = SMALL | {key.replace("__", "."): value for key, value in overrides.items()}
        dotted = [text for key, value in given.items() for text in (f"--{key}", value)]
        return [str(self.run_file), "--name", self.name, "--runs-dir", str(self.directory), *dotted]

    def _environment(self) -> dict[str, str]:
        """The mark, and where modules are: what a test put into its directory, and this tree, whichever is
        installed."""
        return {MARK: self.name, "PYTHONPATH": f"{self.directory}{os.pathsep}{ROOT}"}

    def resume(self) -> Launched:
        self._popen(str(self.run_directory / "run.toml"), "--resume")
        return self

    def _popen(self, *arguments: str) -> None:
        self.said = ""
        module, words = "earl.cli.main", ["train", *arguments, "--plain", "--json"]
        variables = {**os.environ, **self._environment()}
        if self.forked:
            self.process = ForkedCommand(module, words, self.directory, variables)
            return
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env=variables,
        )

    def until(self, pattern: str) -> None:
        """Reads the view until a line matches; fails with what was said if the run ends before."""
        assert self.process is not None and self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if re.search(pattern, line):
                return
        pytest.fail(f"{pattern!r} never came; it said:\n{self.said}")

    def finish(self, timeout_s: float = 250.0) -> tuple[int, dict[str, Any]]:
        """(exit code, the JSON of the last line of standard output, {} if there is none)."""
        assert self.process is not None
        out, rest = self.process.communicate(timeout=timeout_s)
        self.said += rest
        lines, code = out.splitlines(), self.process.returncode
        assert code is not None
        return code, json.loads(lines[-1]) if lines else {}

    def processes(self) -> dict[int, str]:
        """pid → command line of every live process of the run, the launcher included."""
        found = {}
        for process in psutil.process_iter():
            try:
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.name:
                    found[process.pid] = " ".join(process.cmdline())
            except psutil.Error:
                continue
        return found

    def kill(self, part: str) -> None:
        """SIGKILL to the first process of this run whose command line has `part`."""
        pid = next(pid for pid, command in sorted(self.processes().items()) if part in command)
        os.kill(pid, signal.SIGKILL)

    def assert_nothing_left(self, *, whole_history: bool = True) -> None:
        assert self.processes() == {}
        assert [name for name in os.listdir("/dev/shm") if self.name in name] == []
        assert list(self.run_directory.rglob("*.sock")) == []
        if (self.run_directory / FOLDER).is_dir():
            checked = check(self.run_directory)
            assert checked.violations == [] and (checked.gaps == [] or not whole_history), checked


def earl_here(
    directory: Path, *words: str, variables: Mapping[str, str] | None = None, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """`earl WORDS` in this directory and process, the services that it starts forked (`preloaded.py`).

    For tests whose subject is what a command does, not that it starts. None of its processes is left. text:
    its standard input.
    """
    output, errors = io.StringIO(), io.StringIO()
    with (
        preloaded(),
        mock.patch.object(sys, "argv", ["earl", *words]),
        mock.patch.object(sys, "stdin", io.StringIO(text)),
        mock.patch.dict(os.environ, variables or {}),
        chdir(directory),
        redirect_stdout(output),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    code = ended.value.code
    assert isinstance(code, int) and multiprocessing.active_children() == []
    return subprocess.CompletedProcess(list(words), code, output.getvalue(), errors.getvalue())


@contextmanager
def launch_in(directory: Path, *, forked: bool = False) -> Iterator[Launched]:
    """A run to be started below `directory`; ends what a failed test left of it.

    forked: as of Launched. The fork server has none of the variables that are set within the block.
    """
    if forked:
        begin_server()
    run = Launched(directory, forked=forked)
    try:
        yield run
    finally:
        for pid in run.processes():  # only after a failure
            os.kill(pid, signal.SIGKILL)


def assert_ledger_adds_up(figures: dict[str, Any]) -> None:
    parts = ("trained", "replayed", "evaluated", "dropped", "live")
    assert figures["issued"] == sum(figures[part] for part in parts), figures
