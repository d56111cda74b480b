"""Checks the record of the documentation's pictures, and what a picture is made of."""

from __future__ import annotations

import ast
import contextlib
import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.record.measured import object_ids
from earl.stack.record import LaunchRecord, Outcome, write_record
from tests.support.paths import ROOT
from tools import picture_record, pictures
from tools.picture_record import SOURCES, PictureRecord, faults, note, read, stale

NAME = "status.svg"
SOURCE = "earl/cli/show/status.py"
# Modules that find a run and its files; nothing of them is seen.
FIND_RUNS = {
    "earl/cli/lib/completion.py",
    "earl/cli/lib/find_run.py",
    "earl/cli/lib/probes.py",
    "earl/cli/lib/run_directory.py",
    "earl/cli/lib/run_services.py",
    "earl/cli/report/data.py",
}


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    done = subprocess.run(["git", *who, *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(root: Path, source: str) -> str:
    """Commits this text as the picture's source; the commit's id."""
    (root / SOURCE).write_text(source)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "A commit")
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for folder in (Path(SOURCE).parent, picture_record.FIGURES):
        (tmp_path / folder).mkdir(parents=True)
    git(tmp_path, "init", "--quiet")
    return tmp_path


def test_every_picture_has_a_record_and_sources_that_exist() -> None:
    records = read()
    assert list(faults(records, picture_record.pictures())) == []
    assert records.keys() == SOURCES.keys()
    assert [path for paths in SOURCES.values() for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("recording.svg", "earl/cli/run/stop.py"),
        ("recording.svg", "earl/cli/top/command.py"),
        ("status.svg", "earl/cli/show/status.py"),
        ("terminal.svg", "earl/cli/show/explain.py"),
    ],
)
def test_the_sources_of_a_picture_hold_what_its_command_prints_with(name: str, command: str) -> None:
    sources = [ROOT / source for source in SOURCES[name]]
    left_out = {
        module
        for module in imported(ROOT / command)
        if not any(module.is_relative_to(source) for source in sources)
    }
    assert {str(module.relative_to(ROOT)) for module in left_out} <= FIND_RUNS


def imported(module: Path) -> set[Path]:
    """The module, and the modules of the command line that it imports, directly or through others."""
    modules: set[Path] = set()
    left = [module]
    while left:
        module = left.pop()
        if module in modules:
            continue
        modules.add(module)
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            name = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if isinstance(node, ast.ImportFrom) and name.startswith("earl.cli."):
                package = ROOT.joinpath(*name.split("."))
                files = (package, *(package / alias.name for alias in node.names))
                left += [file.with_suffix(".py") for file in files if file.with_suffix(".py").is_file()]
    return modules


def test_every_picture_stands_in_a_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert [name for name in SOURCES if f"figures/{name})" not in text] == []


def test_a_picture_without_a_record_and_a_record_without_a_picture_are_faults() -> None:
    record = PictureRecord("0123456789ab", "2026-01-01", "a.toml")
    records = {NAME: record, "dashboard.png": record, "old.png": record}
    wrong = list(faults(records, {NAME, "terminal.svg", "new.png", "old.png"}))
    assert [line.partition(":")[0] for line in wrong] == [
        "docs/figures/new.png",
        "docs/figures/old.png",  # nothing makes it
        "docs/figures/terminal.svg",
        "docs/figures/pictures.json",
    ]
    assert "dashboard.png" in wrong[-1]


def test_a_picture_whose_source_changed_much_is_listed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture_record, "LIMIT", 1)
    first = commit(repository, "a = 1\n")
    note(NAME, first[:12], "2026-01-01", "a.toml", repository)
    assert read(repository)[NAME].source == object_ids(repository, [SOURCE])
    commit(repository, "a = 2\n")
    commit(repository, '"""Says what it does, which changes nothing."""\na = 2\n')
    assert stale(read(repository), repository) == []
    commit(repository, "a = 3\n")
    (line,) = stale(read(repository), repository)
    assert line.startswith(f"stale: {NAME}") and "2 commits" in line


def test_a_commit_that_is_not_in_the_history_is_told(repository: Path) -> None:
    first = commit(repository, "a = 1\n")
    source = object_ids(repository, [SOURCE], first)
    (line,) = stale({NAME: PictureRecord("0123456789ab", "2026-01-01", "a.toml", source)}, repository)
    assert line.startswith(f"stale? {NAME}") and "same code" in line


@pytest.mark.parametrize(("outcome", "steps"), [("failed", 3), ("complete", pictures.STATUS_STEP)])
def test_a_run_that_has_ended_makes_no_picture_of_a_run_in_progress(
    outcome: Outcome, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({"phase": "train", "step": step + 1}) for step in range(steps)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    write_record(tmp_path, LaunchRecord(pid=1, mark="", outcome=outcome))
    monkeypatch.setattr(pictures, "started", lambda run_file: contextlib.nullcontext(tmp_path))
    made: list[str] = []
    monkeypatch.setattr(pictures, "terminal_pictures", lambda name, command: made.append(name))
    with pytest.raises(RuntimeError, match=f"ended as '{outcome}' after {steps} steps"):
        pictures.growing_pictures(set(SOURCES))
    assert made == []


def test_a_run_in_progress_is_pictured_at_its_step(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"phase": "warmup"}\n{"phase": "train", "step": 1}\n')
    write_record(tmp_path, LaunchRecord(pid=1, mark=""))
    pictures.wait_for_step(tmp_path, 1)


def test_the_switch_that_is_explained_is_the_first_that_the_selector_decided(tmp_path: Path) -> None:
    def line(**fields: object) -> str:
        switch = {
            "epoch": 1,
            "before": {"dp": 4, "tp": 1},
            "after": {"dp": 1, "tp": 4},
            "stage": "rollout",
            "by": "selector",
        }
        return json.dumps({**switch, **fields}) + "\n"

    file = tmp_path / "switches.jsonl"
    file.write_text(line(stage="trainer", step=3) + line(step=0) + line(step=4, rolled_back=True))
    with pytest.raises(LookupError, match="no switch"):
        pictures.explained(tmp_path)
    file.write_text(file.read_text() + line(step=7) + line(step=9))
    switch = pictures.explained(tmp_path)
    assert switch.step == 7 and (str(switch.before), str(switch.after)) == pictures.DESCRIBED
