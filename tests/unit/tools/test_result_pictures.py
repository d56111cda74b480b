"""Pictures of results in pages: that of the newest result, or nothing; any other is a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tools import picture_record
from tools.figures import Page, fill, pages
from tools.paper_pictures import PICTURES, draw
from tools.result_pictures import FOLDER, PICTURE, check, file_of
from tools.results import RESULTS, Record, record

NOTES = '[machines]\nfirst = "A"\nsecond = "B"\nsecond_commits = []\n'
TABLE1 = "paper-table1"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / "notes.toml").write_text(NOTES)
    return tmp_path


def known(root: Path, *times: str) -> Record:
    """A record with a result of Table 1 for each of these times, each of fewer contexts than the last."""
    (first, *_) = sorted(RESULTS.glob(f"{TABLE1}-*.json"))
    figures = json.loads(first.read_text())
    for number, time in enumerate(times):
        fewer = {**figures, "contexts": figures["contexts"][number:]}
        (root / "results" / f"{TABLE1}-{time}.json").write_text(json.dumps(fewer))
    return Record(root / "results", root / "notes.toml")


def page(root: Path, text: str, results: Record) -> Page:
    path = root / "page.md"
    path.write_text(text)
    return fill(path, results)


def test_a_marker_without_a_result_shows_nothing(root: Path):
    text = f"a\n\n<!--picture {TABLE1}--><!--/picture-->\n\nb\n"
    filled = page(root, text, known(root))
    assert filled.faults == [] and filled.text == text and filled.shown == set()
    assert list(check(known(root), write=True, root=root)) == []
    assert list((root / FOLDER).iterdir()) == []


def test_the_newest_result_is_shown_with_its_command(root: Path):
    results = known(root, "20260101-000000", "20260102-000000")
    marker = f"<!--picture {TABLE1}--><!--/picture-->"
    filled = page(root, marker, results)
    (fault,) = filled.faults
    assert fault[0] == 1 and filled.shown == {f"{TABLE1}-20260102-000000"}
    assert f"![{draw(results.series(TABLE1)[-1].figures).description}](" in filled.text
    assert (
        f"{file_of(TABLE1).as_posix()})\n\n`earl bench paper --figure table1`, [2026-01-02 00:00]("
        in filled.text
    )
    assert page(root, filled.text, results).faults == []
    # A later result makes it differ.
    later = known(root, "20260101-000000", "20260102-000000", "20260103-000000")
    assert "2026-01-03" in page(root, filled.text, later).text


@pytest.mark.parametrize("marker", ["<!--picture newcomer--><!--/picture-->", "<!--picture paper-table1-->"])
def test_a_marker_that_cannot_be_filled_is_a_fault(root: Path, marker: str):
    (fault,) = page(root, marker, known(root)).faults
    assert "there is no picture of newcomer" in fault[1] or "without its other half" in fault[1]


def test_a_picture_that_is_not_the_newest_results_is_a_fault_until_it_is_drawn(root: Path):
    results = known(root, "20260101-000000")
    (fault,) = check(results, write=False, root=root)
    assert fault.startswith("docs/figures/paper-table1.svg: not that of the newest result")
    assert list(check(results, write=True, root=root)) == []
    assert (root / file_of(TABLE1)).read_text() == draw(results.series(TABLE1)[0].figures).svg()
    assert list(check(results, write=False, root=root)) == []
    (fault,) = check(known(root, "20260101-000000", "20260102-000000"), write=False, root=root)
    assert "not that of the newest result" in fault


def test_a_picture_without_a_result_is_a_fault(root: Path):
    (root / file_of("paper-fig4")).write_text("<svg/>")
    (fault,) = check(known(root), write=True, root=root)
    assert fault == "docs/figures/paper-fig4.svg: no result has this picture; remove it"


def test_every_picture_is_that_of_its_newest_result_and_stands_on_the_papers_page():
    assert list(check(record(), write=False)) == []
    text = (ROOT / "docs" / "paper.md").read_text()
    assert sorted(marker["spec"].strip() for marker in PICTURE.finditer(text)) == sorted(PICTURES)
    named = {marker["spec"].strip() for path in pages() for marker in PICTURE.finditer(path.read_text())}
    assert named <= PICTURES.keys()
    # They have no record of a run.
    assert not {file_of(benchmark).name for benchmark in PICTURES} & picture_record.pictures()
