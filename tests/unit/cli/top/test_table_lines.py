"""Tables as lines: what fits, what is wrapped, what does not move."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.cli.lib.status_table import StatusTable
from earl.cli.show.panels import tables
from earl.cli.top.table_lines import table_lines
from tests.support.snapshots import SNAPSHOT

SENTENCES = StatusTable(
    "switches",
    ("stage", "switch", "reason"),
    (("rollout", "switched from dp2 to tp2 in 4.20 s, stalled 0.31 s (epoch 3)", "lengths grew a lot"),),
    prose=frozenset({"switch", "reason"}),
)


def texts(table: StatusTable, cells: int) -> list[str]:
    return [line.text for line in table_lines(table, cells).lines]


@pytest.mark.parametrize("cells", [58, 78, 118, 198])
def test_every_table_fits_and_no_word_is_broken(cells: int):
    for table in tables(SNAPSHOT):
        lines = texts(table, cells)
        assert max(map(len, lines)) <= cells, table.title
        kept = table_lines(table, cells).columns
        words = {
            word
            for row in table.rows
            for name, cell in zip(table.columns, row, strict=True)
            if name in kept
            for word in cell.split()
        }
        assert words <= set(" ".join(lines).split()), table.title
        assert set(table.columns) - set(kept) <= set(table.least)


def test_a_row_without_sentences_is_split_into_pieces_and_loses_nothing():
    (table,) = (table for table in tables(SNAPSHOT) if table.title == "tickets")
    assert len(texts(table, 200)) == 2
    lines = texts(table, 40)
    assert len(lines) > 2 and max(map(len, lines)) <= 40
    assert " ".join(lines[::2]).split() == " ".join(table.columns).split()
    assert " ".join(lines[1::2]).split() == list(table.rows[0])


def test_numbers_stand_on_the_right_and_keep_their_place():
    wide = StatusTable(
        "t", ("name", "n", "x"), (("a", "1,000", "z"), ("b", "2", "z")), numbers=frozenset({"n"})
    )
    before = table_lines(wide, 80)
    assert [line.text for line in before.lines] == [
        "name       n   x",
        "a      1,000   z",
        "b          2   z",
    ]
    narrow = replace(wide, rows=(("a", "999", "z"), ("b", "2", "z")))
    assert table_lines(narrow, 80, before).lines[2] == before.lines[2]
    assert table_lines(narrow, 80).lines[2] != before.lines[2]


def test_lines_of_one_row_belong_to_it():
    lines = table_lines(replace(SENTENCES, rows=SENTENCES.rows * 2), 60).lines
    assert [line.row for line in lines[:1]] == [None]
    rows = [line.row for line in lines[1:]]
    assert rows == sorted(rows, key=str) and set(rows) == {0, 1} and rows.count(0) > 1


@given(st.integers(20, 200), st.lists(st.text("abc ", min_size=1, max_size=60), min_size=1, max_size=4))
def test_sentences_are_as_long_as_the_screen_lets_them(cells: int, sentences: list[str]):
    rows = tuple(("rollout", sentence.strip() or "a") for sentence in sentences)
    table = StatusTable("t", ("stage", "selector"), rows, prose=frozenset({"selector"}))
    shown = table_lines(table, cells)
    assert max(len(line.text) for line in shown.lines) <= max(cells, 7 + 3 + 12)
    longest = max(len(word) for _, sentence in rows for word in sentence.split())
    if cells > 7 + 3 + max(12, longest):
        words = [word for _, sentence in rows for word in sentence.split()]
        assert [w for line in shown.lines[1:] for w in line.text.split() if w != "rollout"] == words


def test_a_table_whose_rows_are_gone_keeps_its_header():
    leases = next(table for table in tables(SNAPSHOT) if table.title == "playing")
    assert len(texts(replace(leases, rows=(), keys=()), 80)) == 1


def test_control_characters_of_a_name_do_not_reach_the_terminal():
    table = StatusTable("t", ("name", "n"), (("a\x1b[2J", "1"), ("b", "2")), numbers=frozenset({"n"}))
    assert "\x1b" not in "".join(texts(table, 80))
