"""Task sets: rows from files, their split, and what is refused with the row's number."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.config.environment import EnvironmentConfig
from earl.config.task_set import ROW_BYTES, canonical, fraction, split, task_set_of
from earl.errors import ConfigError


def section(path: Path | str = "", **keys: object) -> EnvironmentConfig:
    return EnvironmentConfig.model_validate({"name": "a/b", "tasks": str(path), **keys})


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_every_task_is_on_one_side(tmp_path: Path) -> None:
    path = written(tmp_path, *(json.dumps({"question": str(number)}) for number in range(400)))
    tasks = task_set_of(section(path, held_out=0.25), "a/b")
    assert tasks is not None
    assert sorted([*tasks.train, *tasks.held_out]) == list(range(400))
    assert 60 < len(tasks.held_out) < 140
    assert json.loads(tasks.rows[17]) == {"question": "17"}


def test_order_and_company_of_rows_do_not_change_their_side(tmp_path: Path) -> None:
    rows = [{"question": str(number)} for number in range(50)]
    sides = []
    for order in (rows, rows[::-1], rows[10:20]):
        tasks = task_set_of(section(written(tmp_path, *map(json.dumps, order)), held_out=0.3), "a/b")
        assert tasks is not None
        sides.append({tasks.rows[number] for number in tasks.held_out})
    assert sides[0] == sides[1] and sides[2] == sides[0] & {canonical(row) for row in rows[10:20]}


def test_rows_of_one_key_are_on_one_side(tmp_path: Path) -> None:
    rows = [{"sum": f"{a}+{b}", "problem": sorted((a, b))} for a in range(12) for b in range(12)]
    path = written(tmp_path, *map(json.dumps, rows))
    tasks = task_set_of(section(path, held_out=0.5, task_key="problem"), "a/b")
    assert tasks is not None
    problems = [{str(rows[number]["problem"]) for number in side} for side in (tasks.train, tasks.held_out)]
    assert problems[0] and problems[1] and not problems[0] & problems[1]


@given(st.lists(st.text(min_size=1), unique=True, max_size=60), st.floats(0, 0.99))
def test_the_split_is_a_function_of_each_key(keys: list[str], held_out: float) -> None:
    train, evaluate = split(keys, held_out)
    assert sorted(train + evaluate) == list(range(len(keys)))
    assert evaluate == [number for number, key in enumerate(keys) if fraction(key) < held_out]


def test_a_mark_at_the_beginning_and_empty_lines_at_the_end_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('\ufeff{"b": 1, "a": 2}\n{"a": 3}\n\n\n', encoding="utf-8")
    tasks = task_set_of(section(path, held_out=0.0), "a/b")
    assert tasks is not None and list(tasks.rows) == ['{"b":1,"a":2}', '{"a":3}']


def test_seeded_instances_are_split_likewise() -> None:
    tasks = task_set_of(section(instances=1000, held_out=0.1), "a/b")
    assert tasks is not None and tasks.tasks == 1000 and not tasks.rows
    assert sorted([*tasks.train, *tasks.held_out]) == list(range(1000)) and 60 < len(tasks.held_out) < 140
    assert task_set_of(section(), "a/b") is None


REFUSED = {
    "no object": (['{"a": 1}', "[1]"], r"tasks\.jsonl: row 2 is no JSON object"),
    "no JSON": (['{"a": 1}', '{"a": '], r"tasks\.jsonl: row 2 is not JSON: "),
    "a nested row": (
        ['{"a": 1}', '{"q":' + "[" * 50_000 + "]" * 50_000 + "}"],
        r"row 2 is nested too deeply",
    ),
    "an empty line": (['{"a": 1}', "", '{"a": 2}'], r"tasks\.jsonl: row 2 is empty"),
    "a row twice": (['{"a": 1, "b": 2}', '{"a": 3}', '{"b": 2, "a": 1}'], r"row 3 is row 1 once more"),
    "a key twice": (
        ['{"a": 1}', '{"a": 2, "b": 3, "a": 4}'],
        r"row 2 is not JSON: 'a' is a key of one object 2 times; correct the line",
    ),
    "a key twice in a table within": (
        ['{"a": {"b": 1, "b": 1}}'],
        r"row 1 is not JSON: 'b' is a key of one object 2 times",
    ),
    "a number that is none": (['{"a": NaN}'], r"row 1 is not JSON: "),
    "a large row": (
        ['{"a": 1}', json.dumps({"a": "x" * ROW_BYTES})],
        r"row 2 has 262,152 bytes, more than 262,144; shorten or remove it",
    ),
    "no rows": ([], r"tasks\.jsonl has no rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(tmp_path: Path, case: str) -> None:
    lines, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as raised:
        task_set_of(section(written(tmp_path, *lines)), "a/b")
    assert "\n" not in str(raised.value)


def test_files_and_keys_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tasks = '.*none\.jsonl' does not exist"):
        task_set_of(section(tmp_path / "none.jsonl"), "a/b")
    path = written(tmp_path, '{"a": 1}', '{"b": 1}')
    with pytest.raises(ConfigError, match=r"row 2 has no 'a', the task_key; add it to every row"):
        task_set_of(section(path, task_key="a"), "a/b")
    with pytest.raises(ConfigError, match=r"all 1 tasks of .* are held out for evaluation; lower held_out"):
        key = next(key for key in map(str, range(999)) if fraction(canonical({"a": key})) < 0.5)
        task_set_of(section(written(tmp_path, json.dumps({"a": key})), held_out=0.5), "a/b")
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bytes\.jsonl is not UTF-8 text"):
        task_set_of(section(tmp_path / "bytes.jsonl"), "a/b")


def test_a_parquet_file_has_the_same_tasks_as_its_rows_in_jsonl(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"question": f"{number} + 1", "answer": number + 1} for number in range(30)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "tasks.parquet")
    parquet_set = task_set_of(section(tmp_path / "tasks.parquet"), "a/b")
    lines_set = task_set_of(section(written(tmp_path, *map(json.dumps, rows))), "a/b")
    assert parquet_set is not None and lines_set is not None
    assert parquet_set == replace(lines_set, sha256=parquet_set.sha256)
    (tmp_path / "broken.parquet").write_text("no parquet")
    with pytest.raises(ConfigError, match=r"broken\.parquet is not Parquet: "):
        task_set_of(section(tmp_path / "broken.parquet"), "a/b")
