"""An engine that is not EARL's sees the GPUs that are its own, of those that its worker was given."""

from __future__ import annotations

import os

import pytest

from earl.errors import EngineError
from services.rollout.engines.contract.engine import EngineSpec
from services.rollout.engines.foreign.engine import narrow_visible_gpus
from services.rollout.pool.devices import engine_device


def shown(monkeypatch: pytest.MonkeyPatch, device: str, tp: int, visible: str | None) -> str | None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    narrow_visible_gpus(EngineSpec(name="rollout-0/engine-1", model_dir="m", device=device, tp=tp))
    return os.environ.get("CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("device", "tp", "visible", "own"),
    [
        ("cuda:1", 1, "4,5,6,7", "5"),
        ("cuda:2", 2, "4,5,6,7", "6,7"),
        ("auto:1", 1, "GPU-a,GPU-b", "GPU-b"),
        ("cuda:2", 2, None, "2,3"),
        ("cuda:0", 2, "4,5", "4,5"),
        ("cuda", 1, None, None),
    ],
)
def test_an_engine_sees_its_part_of_what_its_worker_sees(monkeypatch, device, tp, visible, own):
    assert shown(monkeypatch, device, tp, visible) == own


def test_too_few_gpus_are_named(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(EngineError, match="needs GPU 3 of the 3 in CUDA_VISIBLE_DEVICES=4,5,6"):
        shown(monkeypatch, "cuda:2", 2, "4,5,6")


def test_engines_of_a_pool_have_gpus_of_their_own_or_take_shared_ones_in_turns():
    assert [engine_device("cuda", number, 2) for number in range(3)] == ["cuda:0", "cuda:2", "cuda:4"]
    assert [engine_device("auto", number, 1, gpus=2) for number in range(3)] == ["auto:0", "auto:1", "auto:0"]
    assert [engine_device("cuda", number, 2, gpus=3) for number in range(2)] == ["cuda:0", "cuda:0"]
    assert engine_device("cpu", 3, 1, gpus=1) == "cpu"
