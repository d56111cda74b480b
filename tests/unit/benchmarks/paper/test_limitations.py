"""The paper's limitations: their tests exist, and one that does not pass is not counted as passed."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper.limitations import LIMITATIONS, passing
from tests.support.paths import ROOT

SOURCE = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_good(number):
    pass

@pytest.mark.parametrize("number", [1, 2])
def test_half(number):
    assert number == 1

def test_skipped():
    pytest.skip("never")
"""


def test_every_test_exists() -> None:
    for limitation in LIMITATIONS:
        assert limitation.tests
        for test in limitation.tests:
            path, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), test


def test_one_that_failed_or_was_skipped_has_not_passed(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_these.py").write_text(SOURCE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    named = [f"tests/test_these.py::{name}" for name in ("test_good", "test_half", "test_skipped")]
    assert passing(named, tmp_path) == {"tests/test_these.py::test_good"}
