"""benchmarks/results/ only grows: what stood there in the history that leads to HEAD is there, unchanged."""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from tools.results import measured_commit

ROOT = Path(__file__).resolve().parents[4]
RESULTS = ROOT / "benchmarks" / "results"
RUNS = "benchmarks/results/runs.jsonl"
# Text about the results, which may change.
EDITED = {"benchmarks/results/README.md"}
NOTES = tomllib.loads((ROOT / "benchmarks" / "record" / "notes.toml").read_text())


def git(*arguments: str, root: Path = ROOT) -> bytes:
    return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=True).stdout


def versions(root: Path) -> dict[str, list[str]]:
    """Every file that ever stood in benchmarks/results/: its blobs, oldest first."""
    listed = git(
        "log", "--reverse", "--topo-order", "--full-history", "--no-renames", "--raw", "--no-abbrev",
        "--format=", "--", "benchmarks/results", root=root,
    )  # fmt: skip
    blobs: dict[str, list[str]] = {}
    for line in listed.decode().splitlines():
        facts, path = line.split("\t")
        _, _, _, blob, status = facts.split()
        if status != "D":
            blobs.setdefault(path, []).append(blob)
    return blobs


def faults(root: Path) -> list[str]:
    """Returns what the working tree has lost or changed of the results in its history."""
    found = []
    for path, blobs in versions(root).items():
        file = root / path
        if path in EDITED:
            continue
        if not file.exists():
            found.append(f"{path} is gone: bring it back with `git show {blobs[0]} > {path}`")
            continue
        now = file.read_bytes()
        if path == RUNS:
            former = [git("cat-file", "blob", blob, root=root) for blob in dict.fromkeys(blobs)]
            if not all(
                later.startswith(before) for before, later in zip(former, [*former[1:], now], strict=True)
            ):
                found.append(f"{path} lost or changed lines that it had")
        elif now != git("cat-file", "blob", blobs[0], root=root):
            found.append(f"{path} differs from its first version: a result is never edited")
    return found


def no_history(root: Path) -> str:
    """Returns why the history of a working tree cannot be read; "" if it can."""
    inside = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, check=False)
    if inside.returncode:
        return "no git history: this is no checkout"
    if git("rev-parse", "--is-shallow-repository", root=root).strip() == b"true":
        return "no whole git history: this clone is shallow (git fetch --unshallow)"
    return ""


def test_no_result_was_ever_lost_or_changed() -> None:
    if reason := no_history(ROOT):
        pytest.skip(reason)
    assert len(versions(ROOT)) > 40
    assert faults(ROOT) == []


def test_a_lost_a_changed_and_a_shortened_file_are_noticed(tmp_path: Path) -> None:
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)

    def commit(**files: str | None) -> None:
        for name, text in files.items():
            path = results / name.replace("_", ".")
            path.unlink() if text is None else path.write_text(text)
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
        git("add", "-A", root=tmp_path)
        git(*who, "commit", "-qm", "change", root=tmp_path)

    git("init", "-q", root=tmp_path)
    commit(a_json="{}\n", b_json="1\n", runs_jsonl="1\n", README_md="x")
    commit(runs_jsonl="1\n2\n", README_md="y")
    assert faults(tmp_path) == []
    commit(a_json=None, b_json="2\n")
    assert [fault.partition(":")[0] for fault in faults(tmp_path)] == [
        "benchmarks/results/a.json is gone",
        "benchmarks/results/b.json differs from its first version",
    ]
    # As a rename, what replaces a file hides that it went; back again, both are as they were.
    commit(a_json="{}\n", b_json="1\n")
    assert faults(tmp_path) == []
    commit(runs_jsonl="1\n3\n")
    assert faults(tmp_path) == ["benchmarks/results/runs.jsonl lost or changed lines that it had"]


def test_results_of_an_uncommitted_tree_are_the_five_that_are_marked() -> None:
    commits = {path.stem: measured_commit(json.loads(path.read_text())) for path in RESULTS.glob("*.json")}
    assert {name for name, commit in commits.items() if "+" in (commit or "+")} == set(NOTES["uncommitted"])
    assert set(NOTES["restored"]) <= commits.keys()


def test_no_run_of_the_record_was_recorded_by_a_test() -> None:
    lines = (ROOT / RUNS).read_text().splitlines() if (ROOT / RUNS).exists() else []
    for line in lines:
        event = json.loads(line)
        assert event["event"] in ("start", "end") and event["id"] and event["time"].endswith("Z")
        assert "/tmp/" not in line and "/work/" not in line
