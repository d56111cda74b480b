"""Figures of README and docs/ are those of the results they name; tools/figures.py says where not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.figures import Page, fill, filled, formatted, no_end
from tools.results import FigureError, Record, evaluate, record

NOTES = '[machines]\nfirst = "A"\nsecond = "B"\nsecond_commits = ["bbbbbbbbbbbb"]\n'


@pytest.fixture
def known(tmp_path: Path) -> Record:
    """Three results of `wait`, the newest of which lacks a key, and one of a benchmark with a longer name."""

    def save(name: str, commit: str, **figures: Any) -> None:
        result = {"benchmark": name, "commit": commit, "machine": {"cores": 2, "processor": "X"}, **figures}
        (folder / f"{name}.json").write_text(json.dumps(result))

    folder = tmp_path / "results"
    folder.mkdir()
    runs = [{"seed": 0, "rate": 0.564, "s": 10.0}, {"seed": 2, "rate": 0.601, "s": 30.5}]
    save("wait-20260101-000000", "aaaaaaaaaaaa+changes", total_s=341.04, p99_ms=567.0, runs=runs)
    save(
        "wait-20260102-000000",
        "bbbbbbbbbbbb",
        total_s=1234.5,
        p99_ms=47.6,
        cases={"a -> b": {"x": 2}},
        ok=True,
    )
    save("wait-20260102-000000-2", "cccccccccccc", total_s=300.0, p99_ms=None)
    save("wait-long-20260103-000000", "cccccccccccc", total_s=1.0)
    (folder / "runs.jsonl").write_text("")
    (tmp_path / "notes.toml").write_text(NOTES)
    return Record(folder, tmp_path / "notes.toml")


def page(directory: Path, text: str, known: Record) -> Page:
    path = directory / "page.md"
    path.write_text(text)
    return fill(path, known)


# --- results --------------------------------------------------------------------------------


def test_a_source_names_the_newest_one_that_has_the_key_or_all_or_one(known: Record) -> None:
    assert known.newest("wait", "total_s").name == "wait-20260102-000000-2"
    assert known.newest("wait", "p99_ms").name == "wait-20260102-000000"
    assert [one.commit for one in known.select("wait-*")] == ["aaaaaaa+changes", "bbbbbbb", "ccccccc"]
    assert [one.machine for one in known.select("wait-*")] == ["A", "B", "A"]
    assert [one.name for one in known.select("wait-long")] == ["wait-long-20260103-000000"]
    assert known.select("wait-20260101-000000")[0].date == "2026-01-01 00:00"
    with pytest.raises(FigureError, match="there is no result nothing"):
        known.select("nothing-*")
    with pytest.raises(FigureError, match="wait-20260102-000000-2 lacks p99_ms"):
        known.newest("wait-20260102-000000-2", "p99_ms")


def test_expressions_are_paths_and_arithmetic_of_them(known: Record) -> None:
    first, second, _ = known.select("wait-*")
    assert evaluate(first, "runs.*.rate") == [0.564, 0.601]
    assert evaluate(first, "runs.seed=2.rate") == 0.601 and evaluate(first, "runs.1.s") == 30.5
    assert evaluate(second, "cases.a -> b.x") == 2
    assert evaluate(first, "{total_s} / 60") == pytest.approx(5.684)
    assert evaluate(first, "max({runs.*.s}) - min({runs.*.s})") == 20.5
    assert evaluate(first, "{runs.*.s} / {runs.*.rate}") == pytest.approx([10 / 0.564, 30.5 / 0.601])
    assert evaluate(first, ".s", {"s": 7}) == 7 and evaluate(first, "@key", {}, "k") == "k"
    for wrong in ("{total_s} ** 2", "__import__('os')", "{total_s} / 0", "{total_s}.real", "@nothing"):
        with pytest.raises(FigureError):
            evaluate(first, wrong)


# --- text -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (341.04, ".0f", "341"), (1234.5, ",.0f", "1,234"), (0.564, ".0%", "56 %"), (2.5, "", "2.5"),
        ([0.10, 0.14], "range .0%", "10–14 %"), ([0.101, 0.099], "range .1f", "0.1"),
        ([-0.2, 1.0], "range .1f", "-0.2 to 1.0"), (-0.001, ".1f", "0.0"), (-0.001, ".0%", "0 %"),
        ([1, 2, 3], "list d", "1, 2 and 3"), ([1], "list d", "1"), ([1, 2], "last d", "2"),
        (True, "", "yes"), ("dp2", "", "dp2"), (["a", "b"], "list", "a and b"),
    ],
)  # fmt: skip
def test_formats(value: Any, form: str, text: str) -> None:
    assert formatted(value, form) == text


@pytest.mark.parametrize(
    ("value", "form"), [([1, 2], ".0f"), (1, "range .0f"), ("text", ".0f"), (1, "nonsense")]
)
def test_a_format_that_does_not_fit_is_an_error(value: Any, form: str) -> None:
    with pytest.raises(FigureError, match="no format"):
        formatted(value, form)


def test_a_sentence_is_filled_in_and_its_results_are_known(tmp_path: Path, known: Record) -> None:
    text = (
        "It takes <!--f wait; total_s; .0f-->?<!--/f--> s, "
        "before <!--f wait-20260101-000000; {total_s} / 60; .1f-->\n?<!--/f--> min: "
        "<!--f wait-*; total_s; range ,.0f-->?<!--/f-->, <!--f wait-*; cases.a -> b.x; last-->?<!--/f-->."
    )
    filled_in = page(tmp_path, text, known)
    assert [line for line, _ in filled_in.faults] == [1, 1, 2, 2]
    assert "It takes <!--f wait; total_s; .0f-->300<!--/f--> s" in filled_in.text
    assert ".1f-->5.7<!--/f--> min" in filled_in.text and "-->300–1,234<!--/f-->" in filled_in.text
    assert "last-->2<!--/f-->." in filled_in.text and len(filled_in.shown) == 3
    assert page(tmp_path, filled_in.text, known).faults == []


def test_drift_a_missing_key_and_a_broken_marker_are_said_with_their_line(
    tmp_path: Path, known: Record
) -> None:
    text = (
        "a\n<!--f wait; total_s; .0f-->299<!--/f-->\n<!--f wait; nothing; .0f-->1<!--/f-->\n"
        "<!--f wait; total_s-->\n"
    )
    found = page(tmp_path, text, known)
    assert [line for line, _ in found.faults] == [4, 2, 3]
    assert "without its other half" in found.faults[0][1]
    assert (
        "states '299', the record has '300'" in found.faults[1][1] and "lacks nothing" in found.faults[2][1]
    )
    # What cannot be filled in stays as it is.
    assert "nothing; .0f-->1<!--/f-->" in found.text


TABLE = """
<!--table wait-*
where total_s
measured = @result
commit = @commit
p99, ms = ?p99_ms; .1f; <= 50
total, s = total_s; ,.0f; >= 301
-->
<!--/table-->
"""


def test_a_table_has_all_results_and_says_which_missed_their_goal(tmp_path: Path, known: Record) -> None:
    found = page(tmp_path, TABLE, known)
    rows = [line for line in found.text.splitlines() if line.startswith("|")]
    assert rows[0] == "| measured | commit | p99, ms (goal ≤ 50) | total, s (goal ≥ 301) |"
    assert rows[2].endswith("| `aaaaaaa+changes` | **567.0, missed** | 341 |")
    assert rows[3].endswith("| `bbbbbbb` | 47.6 | 1,234 |")
    assert rows[4].endswith("| `ccccccc` | – | **300, missed** |") and len(rows) == 5
    assert "[2026-01-01 00:00](" in rows[2] and "wait-20260101-000000.json)" in rows[2]
    assert page(tmp_path, found.text, known).faults == []
    # A key that is not optional must be in every row's result.
    assert "lacks p99_ms" in page(tmp_path, TABLE.replace("?p99", "p99"), known).faults[0][1]


def test_a_table_of_a_list_has_a_row_for_each_element(tmp_path: Path, known: Record) -> None:
    spec = (
        "<!--table wait-*\nwhere runs\nrows runs.*\nday = @date\nseed = .seed; d\nrate = .rate; .1%\n-->\n"
        "<!--/table-->"
    )
    rows = [line for line in page(tmp_path, spec, known).text.splitlines() if line.startswith("|")]
    assert rows[2:] == ["| 2026-01-01 00:00 | 0 | 56.4 % |", "| 2026-01-01 00:00 | 2 | 60.1 % |"]
    named = "<!--table wait-*\nwhere ok=True\nrows cases.*\ncase = @key\nx = .x\n-->\n<!--/table-->"
    assert "| a -> b | 2 |" in page(tmp_path, named, known).text


def test_a_table_that_may_be_empty_says_so(tmp_path: Path, known: Record) -> None:
    """Neither a key that no result has nor a benchmark without results is an error then."""
    for source in ("wait-*", "never-*"):
        text = f"<!--table {source}\nmay be empty\nrows nothing.*\nx = .x\n-->\n<!--/table-->"
        shown = page(tmp_path, text, known)
        assert "No result has this yet." in shown.text
        assert [what for _, what in shown.faults if "no result" in what.lower()] == []


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("wait-*\nwhere nothing\na = total_s", "no result of wait"),
        ("wait-*\na: total_s", "is not header = expression"),
        ("wait-*\na = total_s; .0f; about 3", "is not header = expression"),
        ("wait-*", "no columns"),
        ("wait-*\nrows total_s\na = .x", "has no list total_s"),
    ],
)
def test_a_table_that_cannot_be_made_is_an_error(tmp_path: Path, known: Record, spec: str, said: str) -> None:
    (fault,) = page(tmp_path, f"<!--table {spec}\n-->\n<!--/table-->", known).faults
    assert said in fault[1]


def test_a_benchmark_that_started_and_has_no_end_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert list(no_end(path)) == []
    about = {"name": "demo", "time": "then", "commit": "c0ffee"}
    events = [{"event": "start", "id": "a"}, {"event": "start", "id": "b"}, {"event": "end", "id": "a"}]
    path.write_text("".join(f"{json.dumps({**event, **about})}\n" for event in events))
    assert list(no_end(path)) == ["no end: earl bench demo, started then at c0ffee"]


# --- this checkout --------------------------------------------------------------------------


def test_every_figure_of_readme_and_docs_is_that_of_its_result() -> None:
    pages = list(filled(record()))
    assert sum(len(page.shown) for page in pages) > 20
    assert {page.path.name: page.faults for page in pages if page.faults} == {}
