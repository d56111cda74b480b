"""Work at low priority: only its thread has that, and its outcome is the caller's."""

import os
import threading

import pytest

from services.rollout.engines.process.low_priority import NICENESS, at_low_priority


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_only_the_work_has_the_low_priority() -> None:
    before = niceness()
    assert at_low_priority(niceness) == min(19, before + NICENESS)
    assert niceness() == before


def test_an_error_is_the_callers() -> None:
    with pytest.raises(KeyError, match="gone"):
        at_low_priority(lambda: {}["gone"])
