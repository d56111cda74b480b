"""JSON-lines files are followed as they grow, and begun anew where another one stands in their place."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from earl.obs.metrics import LineFile
from earl.obs.tail import KNOWN_BYTES, Tail


def test_a_line_counts_once_it_is_whole(tmp_path: Path):
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"a": 1}\n{"a": ')
    assert tail.read() == [{"a": 1}] and tail.read() == []
    with path.open("a") as file:
        file.write('2}\nno json\n[1]\n{"a": 3}\n')
    assert tail.read() == [{"a": 2}, {"a": 3}] and not tail.renewed
    assert Tail(path, tail.offset, tail.mark).read() == []
    LineFile(path).write({"a": 4})
    assert Tail(path, tail.offset, tail.mark).read() == tail.read() == [{"a": 4}]


def test_a_replaced_file_is_read_anew(tmp_path: Path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n' * 3)
    tail = Tail(path)
    assert len(tail.read()) == 3
    beside = tmp_path / "new"
    beside.write_text('{"a": 9}\n' * 9)
    os.replace(beside, path)
    assert tail.read() == [{"a": 9}] * 9 and tail.renewed
    path.write_text('{"a": 5}\n')
    assert tail.read() == [{"a": 5}] and tail.renewed and tail.read() == [] and not tail.renewed
    path.unlink()
    assert tail.read() == [] and tail.renewed and tail.read() == [] and not tail.renewed


def test_a_file_that_got_the_inode_of_the_one_before_is_another_one(tmp_path: Path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n' * 1000)
    tail, inode = Tail(path), path.stat().st_ino
    assert len(tail.read()) == 1000
    path.write_text('{"a": 2}\n' * 1001)
    assert path.stat().st_ino == inode
    went_on = Tail(path, tail.offset, tail.mark)
    for one in (tail, went_on):
        assert one.read() == [{"a": 2}] * 1001 and one.renewed
        assert one.read() == [] and not one.renewed


def test_the_end_of_a_long_file_is_read_alone(tmp_path: Path):
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"a": {number}}}\n' for number in range(100)))
    tail = Tail(path)
    tail.skip_to_last(15)
    assert tail.read() == [{"a": 99}] and tail.read() == [] and not tail.renewed


@given(st.lists(st.integers(1, KNOWN_BYTES // 6), max_size=6), st.sampled_from([1000, KNOWN_BYTES, -1]))
def test_a_file_that_grows_is_never_another_one(counts: list[int], scan_bytes: int):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines.jsonl"
        tail, found, written = Tail(path, scan_bytes=scan_bytes), [], 0
        for count in counts:
            with path.open("a") as file:
                file.writelines(f'{{"a": {written + number}}}\n' for number in range(count))
            written += count
            while new := tail.read():
                assert not tail.renewed
                found += new
        assert [one["a"] for one in found] == list(range(written))
