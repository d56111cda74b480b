"""Which commits count as changes of what a benchmark measures, and which only move it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools import staleness
from tools.staleness import Blobs, History, changes, digest, measured_code

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
    monkeypatch.setattr(staleness, "_leads_to_head", lambda root, commit: False)
    (line,) = staleness.report(record(), {name: [ROOT / "README.md"]})
    assert name in line and "not in this history" in line
