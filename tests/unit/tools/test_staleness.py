"""Checks which commits count as changes of what a benchmark measures, and which only move it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.record.measured import object_ids
from tests.support.paths import ROOT
from tools import staleness
from tools.results import NOTES, Record
from tools.staleness import Blobs, History, changes, digest, has_history, measured_code, outside_history

CODE = '''"""What it is."""
from services.old import book

def total(values):
    """The sum."""
    return sum(values) + book.extra  # of all
'''


def commit(root: Path, **files: str | None) -> str:
    """Writes or removes files (a__b is a/b.py) and commits them; the commit's id."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink() if text is None else path.write_text(text)
    who = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
    for arguments in (
        ("add", "-A"),
        (*who, "commit", "-qm", "change", "--allow-empty"),
        ("rev-parse", "HEAD"),
    ):
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
        )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from services.old import book", "from services.new.room import index as book"),
        ('"""What it is."""', '"""Something else."""\n# and a comment\n'),
        ('    """The sum."""\n', ""),
        ("import book\n", "import (\n    book,\n)\n"),
        ("  # of all", ""),
        ("book", "index"),
    ],
)
def test_imports_docstrings_and_comments_do_not_count(before: str, after: str) -> None:
    assert before in CODE and digest("a.py", CODE) == digest("a.py", CODE.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [("sum(", "max("), ("total", "whole"), (" + book", " - book"), (".extra", ".more"), ("values", "items")],
)
def test_code_and_its_own_names_count(before: str, after: str) -> None:
    assert before in CODE and digest("a.py", CODE) != digest("a.py", CODE.replace(before, after))


def test_modules_in_strings_may_move_and_other_texts_may_not() -> None:
    run = 'start(["-m", "services.rollout.engines.process", "--fast"])\n'
    assert digest("a.py", run) == digest("a.py", run.replace("engines.process", "engines.process.main"))
    assert digest("a.py", run) != digest("a.py", run.replace("--fast", "--slow"))
    assert digest("a.lua", "x") != digest("a.lua", "x ") and digest("a.py", "no (code") != digest(
        "a.py", "no [code"
    )


def test_a_file_is_followed_through_its_moves(tmp_path: Path) -> None:
    subprocess.run(["git", "-C", str(tmp_path), "init", "-q"], check=True)
    (tmp_path / "pyproject.toml").write_text("")
    filler = "".join(f"value_{number} = {number}\n" for number in range(40))
    start = commit(tmp_path, services__a=CODE + filler, services__b="b = 1\n", earl__other="o = 1\n")

    def count() -> int:
        history = History.since([start], tmp_path)
        with Blobs(tmp_path) as blobs:
            return changes(history, start, ["services"], blobs)

    commit(tmp_path, services__a=None, services__new__room=CODE + filler)  # moved
    commit(tmp_path, services__new__room=CODE.replace("services.old", "services.new") + filler)
    commit(tmp_path, earl__other="o = 2\n")  # not measured
    assert count() == 0
    commit(tmp_path, services__new__room=CODE.replace("sum", "max") + filler)
    assert count() == 1
    # Moved and changed in one commit; a new file; one that is gone.
    commit(tmp_path, services__new__room=None, services__hall=CODE.replace("sum", "min") + filler)
    commit(tmp_path, services__c="c = 1\n")
    commit(tmp_path, services__b=None)
    commit(tmp_path)
    assert count() == 4


def test_every_benchmark_says_which_paths_it_measures() -> None:
    measured = measured_code()
    assert len(measured) > 15
    for name, paths in measured.items():
        assert paths, f"{name} has no MEASURED_CODE"
        assert [path for path in paths if not (ROOT / path).exists()] == [], name


def test_the_report_names_results_and_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.results import record

    name = record().select("demo-*")[0].name
    monkeypatch.setattr(staleness, "leads_to_head", lambda root, commit: False)
    (line,) = staleness.report(record(), {name: [ROOT / "README.md"]})
    assert name in line and "not in this history" in line and "does not keep what it measured" in line


def a_repository(root: Path) -> str:
    """A new repository with one commit; its id."""
    subprocess.run(["git", "-C", str(root), "init", "-q"], check=True)
    return commit(root, services__a="a = 1\n", earl__b="b = 1\n")


def test_content_is_compared_where_a_commit_is_missing(tmp_path: Path) -> None:
    a_repository(tmp_path)
    kept = object_ids(tmp_path, ["services", "earl/b.py", "missing"])
    assert kept.keys() == {"services", "earl/b.py"}
    commit(tmp_path, services__a="a = 2\n")
    assert staleness.same_content(kept, tmp_path) == "changed since: services"
    commit(tmp_path, services__a="a = 1\n")
    assert staleness.same_content(kept, tmp_path) == "same code"
    commit(tmp_path, earl__b=None)
    assert staleness.same_content(kept, tmp_path) == "changed since: earl/b.py"


def test_a_commit_that_does_not_lead_to_head_is_a_fault(tmp_path: Path) -> None:
    root, folder = tmp_path / "checkout", tmp_path / "results"
    root.mkdir()
    folder.mkdir()
    head = a_repository(root)
    notes = tmp_path / "notes.toml"
    notes.write_text(NOTES.read_text().partition("[missing_commits]")[0] + "[missing_commits]\n[machines]\n")
    results = {"good": head[:12], "changed": f"{head[:12]}+changes", "bad": "0123456789ab", "none": None}
    for name, at in results.items():
        machine = {"instruction_sets": [], "processor": "x", "cores": 2}
        path = folder / f"{name}-20261125-000000.json"
        path.write_text(json.dumps({"commit": at, "machine": machine}))
    found = outside_history(Record(folder, notes), root)
    assert [line.partition(":")[0] for line in found] == ["bad-20261125-000000", "none-20261125-000000"]
    notes.write_text(
        notes.read_text().replace("[machines]", '"0123456789ab" = ["bad-20261125-000000"]\n[machines]')
    )
    assert len(outside_history(Record(folder, notes), root)) == 1
    assert outside_history(Record(folder, notes), tmp_path) == []  # no checkout


def test_each_result_names_a_commit_of_this_history_or_is_noted() -> None:
    if not has_history():
        pytest.skip("no whole git history")
    known = Record()
    assert outside_history(known) == []
    assert {name for name in known.missing if known.results[name].order[0] != "20261123"} == set()
