"""Checks what tests in containers read out of logs."""

from __future__ import annotations

import pytest

from tests.support.containers import link_in

LOG = """https://localhost:8080/?token=first
WARNING  https://localhost:8080/?token=said in a sentence
https://localhost:8080/?token=second-_1
the scheduler does not answer
"""


def test_a_pages_link_is_the_last_one_whatever_follows_it() -> None:
    assert link_in(LOG) == "https://localhost:8080/?token=second-_1"


def test_a_log_without_a_link_is_shown() -> None:
    with pytest.raises(AssertionError, match="no link in:\nthe scheduler does not answer"):
        link_in("the scheduler does not answer\n")
