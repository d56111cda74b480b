"""A pytest plugin that writes each test's outcome as soon as it is known: `-p tests.support.slow_results`.

One line of JSON a test function, parameters counted together by the reader, in the file that
EARL_SLOW_RESULTS names: {"test", "outcome": "passed" | "failed" | "skipped", "seconds", "reason"}.
tools/slow_tests.py reads it, also after a run that was broken off.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

RESULTS = "EARL_SLOW_RESULTS"


class Results:
    """Sums a test's set-up, call and tear-down; writes its line after the last of them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._open: dict[str, dict[str, Any]] = {}

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
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    file = os.environ.get(RESULTS)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(Path(file)))
