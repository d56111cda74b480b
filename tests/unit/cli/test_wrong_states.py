"""Commands in a state that does not allow them: one line with state and remedy, and its exit code.

Runs are held by the lock that their launchers hold, ports by sockets that listen.
"""

from __future__ import annotations

import fcntl
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from earl.config.load import load_run
from earl.stack.record import LaunchRecord, write_record
from earl.stack.run_files import LOCK
from earl.stack.rundir import to_toml
from earl.stack.status import RunStatus
from tests.support.refused import fits, refused, wrong_folder

Refuse = Callable[[str], tuple[object, str]]
# Commands that take the only running run if none is named.
UNNAMED = [
    "stop",
    "status",
    "top",
    "logs",
    "report",
    "explain",
    "trace",
    "dashboard",
    "resume",
    "eval",
    "chat",
    "export --to exported",
    "sink --to tensorboard",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the command is typed."""
    monkeypatch.chdir(tmp_path)
    return wrong_folder(tmp_path)


@pytest.fixture
def refuse(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refuse:
    return lambda line: refused(line, here, monkeypatch, capsys)


@pytest.fixture
def running(here: Path) -> Iterator[list[str]]:
    """Names of two runs that launchers hold."""
    shutil.copytree(here / "runs" / "t1", here / "runs" / "t2")
    names = ["t1", "t2"]
    held = [(here / "runs" / name / LOCK).open("w") for name in names]
    for file in held:
        fcntl.flock(file, fcntl.LOCK_EX)
    yield names
    for file in held:
        file.close()


@pytest.fixture
def taken() -> Iterator[str]:
    """An address at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def complete(directory: Path, message: str, **overrides: str) -> None:
    """A run whose last launch ended complete after 5 steps. overrides: of keys, "__" for each dot."""
    keys = [(key.replace("__", "."), value) for key, value in overrides.items()]
    config = load_run(Path("ok.toml"), [("name", directory.name), ("runs_dir", str(directory.parent)), *keys])
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(config.model_dump_json())
    (directory / LOCK).touch()
    (directory / "run.toml").write_text(to_toml(config.model_dump(mode="json")))
    status = RunStatus(phase="done", step=5, steps=config.scheduler.steps, message=message)
    write_record(directory, LaunchRecord(1, "mark", outcome="complete", status=status))


def test_a_running_run_is_not_removed(refuse: Refuse, running: list[str]):
    assert refuse("rm t1 --yes") == (2, "runs/t1 is running; end it first: earl stop runs/t1")


def test_a_running_run_is_not_resumed(refuse: Refuse, running: list[str]):
    assert refuse("resume t1") == (2, "runs/t1 is running; show it with: earl top runs/t1")


@pytest.mark.parametrize("command", UNNAMED)
def test_one_of_several_running_runs_has_to_be_named(command: str, refuse: Refuse, running: list[str]):
    code, text = refuse(command)
    message, remedy = text.split("; ")
    assert (code, remedy) == (2, "name one of them")
    assert message.startswith("several runs are running: ")
    assert set(message.partition(": ")[2].split(", ")) == {"runs/t1", "runs/t2"}


def test_a_run_with_all_of_its_steps_names_the_key_to_raise(refuse: Refuse):
    complete(Path("runs/all"), "all 5 steps are trained", scheduler__steps="5")
    assert refuse("resume all --foreground") == (
        2,
        "all is complete: all 5 steps are trained; to continue it raise scheduler.steps: "
        "earl resume all --scheduler.steps 10",
    )


def test_a_run_that_its_time_limit_ended_names_the_key_to_raise(refuse: Refuse):
    reached = "the time limit of 60 s (scheduler.train_limit_s) was reached after 5 of 9 steps"
    complete(Path("runs/limited"), reached, scheduler__steps="9", scheduler__train_limit_s="60")
    assert refuse("resume limited --foreground") == (
        2,
        f"limited is complete: {reached}; to continue it raise scheduler.train_limit_s: "
        "earl resume limited --scheduler.train_limit_s 120",
    )


def test_a_complete_run_elsewhere_is_named_by_its_directory(refuse: Refuse):
    complete(Path("elsewhere/all"), "all 5 steps are trained", scheduler__steps="5")
    code, text = refuse("resume elsewhere/all --foreground")
    assert code == 2 and text.endswith(": earl resume elsewhere/all --scheduler.steps 10")


@pytest.mark.parametrize("command", ["train", "config check"])
@pytest.mark.parametrize("key", ["gateway.bind", "dashboard.bind", "scheduler.bind", "trainer.bind"])
def test_a_port_that_is_taken(command: str, key: str, refuse: Refuse, taken: str):
    assert refuse(f"{command} ok.toml --{key} {taken}") == (
        5,
        f'{key} = "{taken}" cannot be used: address already in use; '
        f"free the port, or set {key} to 127.0.0.1:0 for any free one",
    )


def test_a_page_at_a_port_that_is_taken(refuse: Refuse, taken: str):
    assert refuse(f"dashboard t1 --bind {taken}") == (
        5,
        f"the dashboard cannot listen at {taken}: address already in use; "
        "free the port, or set dashboard.bind (of earl dashboard, --bind) to 127.0.0.1:0 for any free one",
    )


@pytest.mark.parametrize("command", ["train", "up"])
@pytest.mark.parametrize(
    ("runs_dir", "reason"),
    [
        ("ok.toml", "not a directory"),  # below a file
        ("/sys", "…"),  # where nobody may write; the reason depends on how it is mounted
    ],
)
def test_a_folder_in_which_no_run_can_be_made(runs_dir: str, reason: str, command: str, refuse: Refuse):
    code, text = refuse(f"{command} ok.toml --runs-dir {runs_dir}")
    expected = (
        f"run directory {runs_dir}/tictactoe cannot be written: {reason}; "
        "name a folder that you can write to with --runs-dir"
    )
    assert code == 2 and fits(expected).fullmatch(text), text
