"""From a trainer in any cut (FSDP2 over tp and cp, uneven lengths) to engines of any tp and dtype."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from earl.bus import EmbeddedValkey
from earl.config.data_plane import DataPlaneConfig
from earl.models.parallel import TensorParallel
from services.rollout.engines.contract.data_thread import DataThread
from services.rollout.engines.contract.engine import EngineSpec, LoadReport
from services.rollout.engines.contract.weight_staging import WeightStager
from services.rollout.engines.torch.model_runner import ModelRunner
from services.rollout.engines.torch.ranks import EngineRank
from services.trainer.ranks.io_thread import IoThread
from tests.support import mesh_trainer
from tests.support.mesh_trainer import PUBLISHED, RANKS, SPEC, decoder
from tests.support.processes import ranks

CALL_S = 60.0


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Iterator[tuple[str, str]]:
    """(redis url, arenas' directory) of a trainer whose four ranks have published."""
    directory: Path = tmp_path_factory.mktemp("mesh")
    side, valkey = IoThread(), EmbeddedValkey()
    url = side.run(valkey.start(directory / "bus"), CALL_S)
    with ranks(mesh_trainer.main, RANKS, {"redis": url, "arenas": str(directory)}) as trainers:
        assert [trainer.receive(CALL_S) for trainer in trainers] == ["published"] * RANKS
        yield url, str(directory)
        for trainer in trainers:
            trainer.hang_up()
        codes = [trainer.wait(CALL_S) for trainer in trainers]
    side.run(valkey.stop(), CALL_S)
    side.close()
    assert codes == [0] * RANKS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trainer", PUBLISHED)
@pytest.mark.parametrize("tp", [1, 2])
def test_every_rank_gets_its_slices_bit_for_bit(
    published: tuple[str, str], tp: int, trainer: str, dtype: torch.dtype
):
    """The dtypes of publication and engine may differ, either way."""
    url, arenas = published
    through = getattr(torch, PUBLISHED[trainer][1])
    whole = {name: p.detach().to(through).to(dtype) for name, p in decoder().named_parameters()}
    config = DataPlaneConfig(arena_dir=arenas)
    spec = EngineSpec(
        name="mesh", model_dir="", tp=tp, redis_url=url, run="mesh", data_plane=config.model_dump_json()
    )
    keys = [f"weights/1/{trainer}-{rank}" for rank in range(RANKS)]
    for place in range(tp):
        rank = EngineRank.__new__(EngineRank)  # without its process group: nothing is computed here
        rank.runner = ModelRunner(SPEC, TensorParallel(place, tp), slots=1, context=8, dtype=dtype)
        rank.data = DataThread(spec)
        rank.stager = WeightStager(spec, rank.data, rank.runner.parameters, SPEC.shapes())
        try:
            rank.stager.begin(0, 1, keys, CALL_S)
            assert select.select([rank.data.wake], [], [], CALL_S)[0]
            ((_, report),) = rank.data.take()
            assert isinstance(report, LoadReport), report
            rank.apply(1)
        finally:
            rank.data.close()
        own = rank.runner.parameters
        wanted = sum(part.box.size for one in own.values() for part in one.parts if not one.same_as)
        assert report.size_bytes == wanted * through.itemsize
        for name, one in own.items():
            expected = torch.cat([whole[part.source][part.box.slices()] for part in one.parts])
            assert torch.equal(rank.runner.weights[name], expected), name
