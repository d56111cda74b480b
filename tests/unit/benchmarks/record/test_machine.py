"""The machine that a result names."""

from __future__ import annotations

from pathlib import Path

from benchmarks.record.machine import described, driver_release

VERSION = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""


def test_the_release_of_the_driver(tmp_path: Path):
    file = tmp_path / "version"
    assert driver_release(file) is None
    file.write_text(VERSION)
    assert driver_release(file) == "580.65.06"


def test_without_gpus_a_result_names_no_software_of_theirs(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    facts = described()
    assert facts["gpus"] == [] and not {"driver", "cuda", "cudnn", "nccl", "gpu_count"} & set(facts)
    assert facts["cpu_capability"]
