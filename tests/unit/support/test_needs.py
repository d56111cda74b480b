"""Checks that a missing program skips a test, and fails it with EARL_TEST_NEEDS=required."""

import sys
from pathlib import Path

import pytest

from tests.support import needs


def test_what_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("EARL_TEST_NEEDS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"no-such-browser .* apt-get install .*a-browser"):
        needs.program("no-such-browser", "a-browser")
    monkeypatch.setenv("EARL_TEST_NEEDS", "required")
    with pytest.raises(pytest.fail.Exception, match="a-browser"):
        needs.program("no-such-browser", "a-browser")


def test_what_is_there_is_used(monkeypatch: pytest.MonkeyPatch):
    here = Path(sys.executable)
    monkeypatch.setenv("PATH", str(here.parent))
    assert needs.program(here.name, "python3") == str(here)
