"""Whose failures are ignored when a trainer is told to stop."""

from __future__ import annotations

import threading

import pytest

from earl.errors import BusUnavailable, WorkerReplaced
from services.trainer.ranks.requests import StageRequests

GONE = BusUnavailable("Redis at redis://valkey failed: refused", "start the server")


def test_others_that_are_gone_are_ignored_once_a_stop_was_asked_for() -> None:
    requests = StageRequests(follows_s=0.0)
    with pytest.raises(BusUnavailable):
        requests.ignore_if_stopping(GONE)
    requests.stop.set()
    requests.ignore_if_stopping(GONE)


def test_a_stop_that_follows_their_end_ignores_them_too() -> None:
    requests = StageRequests(follows_s=60.0)
    told = threading.Timer(0.05, requests.stop.set)
    told.start()
    requests.ignore_if_stopping(GONE)
    told.join()


def test_who_has_a_successor_does_not_save() -> None:
    requests = StageRequests()
    requests.stop.set()
    with pytest.raises(WorkerReplaced):
        requests.ignore_if_stopping(WorkerReplaced("trainer was replaced", "leave"))
