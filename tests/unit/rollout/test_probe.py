"""The engines that `earl profile` measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from earl.profiling import ProfileJob
from services.rollout.probe import engine_specs
from tests.support.runs import tictactoe


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_probes_engines_take_devices_of_their_own_as_in_a_run(tmp_path: Path, device: str) -> None:
    config = tictactoe(tmp_path, rollout={"device": device})
    job = ProfileJob("rollout", config.model_dump_json(), str(tmp_path), dp=2, tp=2, points=((32, 2),))
    specs = engine_specs(job, config, 3, 32)
    assert [(spec.device_kind, spec.first_device) for spec in specs] == [(device, 0), (device, 2)]
    assert [(spec.tp, spec.max_sequences, spec.max_context_tokens) for spec in specs] == 2 * [(2, 3, 32)]


def test_a_probes_engines_on_the_processor_need_no_number(tmp_path: Path) -> None:
    config = tictactoe(tmp_path, rollout={"device": "cpu"})
    job = ProfileJob("rollout", config.model_dump_json(), str(tmp_path), dp=2, tp=1, points=((32, 2),))
    assert [spec.device for spec in engine_specs(job, config, 3, 32)] == ["cpu", "cpu"]
