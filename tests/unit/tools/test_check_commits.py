"""Commit messages that a reader cannot use are found."""

from __future__ import annotations

import pytest

from tools.check_commits import faults


def test_a_subject_and_a_reason_pass() -> None:
    assert list(faults("Move it\n\nIt was in the way.")) == []


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("x" * 73 + "\n\nwhy", "73 characters"),
        ("One thing; another\n\nwhy", "semicolon"),
        ("One thing", "no body"),
        ("One thing\nwhy", "no empty line"),
    ],
)
def test_what_a_reader_cannot_use_is_found(message: str, fault: str) -> None:
    (found,) = faults(message)
    assert fault in found
