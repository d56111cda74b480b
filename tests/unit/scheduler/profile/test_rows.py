"""A profile's CSV: what is read is what was written, and every mistake is named with its line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.errors import ConfigError
from earl.parallelism import STAGES, Parallelism
from services.scheduler.profile import rows
from services.scheduler.profile.rows import COLUMNS, ProfileRow, dump, parse

HEAD = ",".join(COLUMNS)
GOOD = "rollout,2,4,1,1,1024,32,310.5,0.5"
NUMBERS = st.floats(1e-9, 1e12)
DEGREES = st.integers(1, 16)


@st.composite
def written(draw) -> ProfileRow:
    oom = draw(st.booleans())
    rate = None if oom else draw(st.none() | NUMBERS)
    fraction = draw(st.floats(0.001, 3.0) if rate is None and not oom else st.none() | st.floats(0.001, 3.0))
    layout = draw(st.builds(Parallelism, DEGREES, DEGREES, DEGREES, DEGREES))
    return ProfileRow(
        draw(st.sampled_from(STAGES)), layout, draw(NUMBERS), draw(NUMBERS), rate, fraction, oom
    )


def near(a: float | None, b: float | None, digits: int) -> bool:
    return a == b if a is None or b is None else abs(a - b) <= 10.0 ** (1 - digits) * a


@settings(max_examples=60)
@given(st.lists(written(), min_size=1, max_size=5, unique_by=lambda row: f"{row.context_tokens:.9g}"))
def test_rows_are_read_as_they_were_written(these):
    text = dump(these)
    again = parse(text, "p.csv")
    assert dump(again) == text
    for a, b in zip(these, again, strict=True):
        assert (a.stage, a.parallelism, a.oom) == (b.stage, b.parallelism, b.oom)
        assert near(a.context_tokens, b.context_tokens, 10) and near(a.concurrency, b.concurrency, 10)
        assert near(a.tokens_per_device_s, b.tokens_per_device_s, 6)
        assert near(a.peak_memory_fraction, b.peak_memory_fraction, 4)


def test_a_line_is_a_row():
    assert parse(f"{HEAD}\n{GOOD}\n", "p.csv") == [
        ProfileRow("rollout", Parallelism(2, 4), 1024.0, 32.0, 310.5, 0.5, False)
    ]


@given(st.permutations(COLUMNS))
@settings(max_examples=20)
def test_columns_stand_in_any_order(order):
    cells = dict(zip(COLUMNS, GOOD.split(","), strict=True))
    text = f"{','.join(order)}\n{','.join(cells[name] for name in order)}\n"
    assert parse(text, "p.csv") == parse(f"{HEAD}\n{GOOD}", "p.csv")


def test_columns_that_may_be_left_out_and_columns_of_others():
    text = "note,stage,tp,context_tokens,concurrency,tokens_per_device_s\nmine,Rollout,4,1024,32,10\n"
    assert parse(text, "p.csv") == [ProfileRow("rollout", Parallelism(tp=4), 1024, 32, 10.0)]


@pytest.mark.parametrize(
    "text",
    [
        f"\ufeff{HEAD}\n{GOOD}\n",
        f"{HEAD}\r\n{GOOD}\r\n",
        f"{HEAD}\n\n{GOOD}\n,,,,,,,,\n  \n",
        f"{HEAD.replace(',', ' , ')}\n{GOOD.replace(',', ' , ')}\n",
        f"{HEAD}\n{GOOD},,\n",
        "\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in (HEAD, GOOD)),
    ],
)
def test_marks_blanks_spaces_and_quotes_change_nothing(text):
    assert parse(text, "p.csv") == parse(f"{HEAD}\n{GOOD}", "p.csv")


@pytest.mark.parametrize(
    ("rate", "fraction", "fits"),
    [
        ("310.5", "0.5", True), ("310.5", "1", True), ("310.5", "1.01", False), ("310.5", "", True),
        ("oom", "", False), ("OOM", "0.9", False), ("", "0.9", True), ("", "1.2", False),
    ],
)  # fmt: skip
def test_what_does_not_fit(rate, fraction, fits):
    (row,) = parse(f"{HEAD}\nrollout,2,4,1,1,1024,32,{rate},{fraction}", "p.csv")
    assert row.fits == fits
    assert row.oom == (rate.lower() == "oom")
    assert (row.tokens_per_device_s is None) == (rate in ("", "oom", "OOM"))


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        *(
            (name, cell, name)
            for name in COLUMNS[5:7]
            for cell in ("", "0", "-1", "nan", "inf", "1e300", "x")
        ),
        *(("tokens_per_device_s", cell, "tokens_per_device_s") for cell in ("0", "-2", "nan", "none")),
        *(("peak_memory_fraction", cell, "peak_memory_fraction") for cell in ("0", "-0.5", "inf", "50%")),
        *((name, "0", name) for name in COLUMNS[1:5]),
        ("tp", "1.5", "degrees"),
        ("tp", "9e9", "degrees"),
        ("stage", "decode", "'decode'"),
        ("stage", "", "''"),
    ],
)
def test_a_bad_cell_is_named_with_its_line_and_a_remedy(column, cell, said):
    cells = dict(zip(COLUMNS, GOOD.split(","), strict=True)) | {column: cell}
    with pytest.raises(ConfigError) as error:
        parse(f"{HEAD}\n{GOOD}\n\n{','.join(cells.values())}\n", "p.csv")
    assert error.value.message.startswith("p.csv, line 4: ") and said in error.value.message
    assert error.value.remedy


@pytest.mark.parametrize(
    ("first", "second", "figures"),
    [
        ("130,", "7,", "130 tokens/s on each device and 7 tokens/s on each device"),
        ("130,", "oom,", "130 tokens/s on each device and oom"),
        ("oom,", "130,0.5", "oom and 130 tokens/s on each device, 50.0% of memory"),
        (",0.5", "130,0.6", "50.0% of memory and 130 tokens/s on each device, 60.0% of memory"),
    ],
)
def test_rows_that_contradict_each_other_are_refused_with_both_lines(first, second, figures):
    point = "rollout,2,4,1,1,1024,32"
    with pytest.raises(ConfigError) as error:
        parse(f"{HEAD}\n{point},{first}\n{GOOD.replace('1024', '64')}\n{point},{second}\n", "p.csv")
    assert error.value.message == (
        "p.csv, line 2 and p.csv, line 4 contradict each other: rollout dp2\u00b7tp4 at 1024 tokens x 32 "
        f"sequences has {figures}"
    )
    assert error.value.remedy == "keep the one that holds"


def test_rows_of_one_point_that_agree_are_kept():
    for other in ("rollout,2,4,1,1,1024,32,,0.5", "rollout,2,4,1,1,1024,32,310.5,", GOOD):
        assert len(parse(f"{HEAD}\n{GOOD}\n{other}\n", "p.csv")) == 2


def test_a_row_without_rate_and_fraction_says_nothing():
    with pytest.raises(ConfigError, match="line 2: neither tokens_per_device_s nor peak_memory_fraction"):
        parse(f"{HEAD}\nrollout,2,4,1,1,1024,32,,", "p.csv")


@pytest.mark.parametrize("missing", ["stage", "tp", "context_tokens", "concurrency", "tokens_per_device_s"])
def test_a_missing_column_is_named(missing):
    head = ",".join(column for column in COLUMNS if column != missing)
    with pytest.raises(ConfigError, match=f"p.csv has no column '{missing}'.*{HEAD}"):
        parse(f"{head}\n{GOOD}\n", "p.csv")


@pytest.mark.parametrize("text", ["", "\n\n", "hello\n", "PNG\x00\x01"])
def test_what_is_no_profile_is_refused(text):
    with pytest.raises(ConfigError, match=r"^p.csv has no column 'stage'"):
        parse(text, "p.csv")


def test_no_rows_and_too_many(monkeypatch):
    with pytest.raises(ConfigError, match=r"^p.csv has no rows; measure some"):
        parse(HEAD, "p.csv")
    monkeypatch.setattr(rows, "MOST_ROWS", 3)
    assert len(parse("\n".join([HEAD, *[GOOD] * 3]), "p.csv")) == 3
    with pytest.raises(ConfigError, match="more than 3 lines"):
        parse("\n".join([HEAD, *[GOOD] * 4]), "p.csv")


def test_thousands_separators_and_open_quotes_are_found_out():
    with pytest.raises(ConfigError, match="line 2: it has 10 cells, and the head 9"):
        parse(f"{HEAD}\nrollout,2,4,1,1,1,024,32,310.5,0.5", "p.csv")
    with pytest.raises(ConfigError, match=r"p.csv, line \d+: .*; close its quotes"):
        parse(f'{HEAD}\nrollout,"{GOOD * 10_000}', "p.csv")
