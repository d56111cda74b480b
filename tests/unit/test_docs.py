"""The examples in the documentation say what the code says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("page", ["data-plane.md"])
def test_examples_come_out_as_written(page: str) -> None:
    found = doctest.testfile(str(DOCS / page), module_relative=False)
    assert found.attempted > 5 and found.failed == 0
