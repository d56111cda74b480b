"""A pytest plugin that writes each test's outcome as soon as it is known: `-p tests.support.slow_results`.

In the file that EARL_SLOW_RESULTS names, lines of JSON: first {"collected": {test: how many parameters}},
then for each set of parameters that has ended {"test", "outcome": "passed" | "failed" | "skipped", "seconds",
"reason"}. Of pytest-xdist's processes the one that hands out the tests writes. tools/slow_tests.py reads the
file while tests run, and after a run that was broken off.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

RESULTS = "EARL_SLOW_RESULTS"
# Tests that were collected and then left out, as by `-m "not slow"`: tests/conftest.py keeps them.
LEFT_OUT = pytest.StashKey[list[pytest.Item]]()


class Results:
    """Sums a test's set-up, call and tear-down; writes its line after the last of them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._open: dict[str, dict[str, Any]] = {}
        self._collected = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._count(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Iterable[str]) -> None:
        if not self._collected:  # every worker collects the same
            self._collected = True
            self._count(ids)

    def _count(self, ids: Iterable[str]) -> None:
        if counted := Counter(name.partition("[")[0] for name in ids):
            self._write({"collected": counted})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        line = self._open.setdefault(
            report.nodeid,
            {"test": report.nodeid.partition("[")[0], "outcome": "passed", "seconds": 0.0, "reason": ""},
        )
        line["seconds"] = round(line["seconds"] + report.duration, 2)
        if report.failed:
            line["outcome"] = "failed"
        elif report.skipped and line["outcome"] == "passed":
            line["outcome"] = "skipped"
            line["reason"] = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
        if report.when == "teardown":
            del self._open[report.nodeid]
            self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    file = os.environ.get(RESULTS)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(Path(file)))
