"""Ranks that change their cut between steps train what ranks train that never do."""

from __future__ import annotations

from pathlib import Path

import pytest

from earl.bus import EmbeddedValkey
from earl.config.model import ScratchModel
from services.trainer.ranks.io_thread import IoThread
from tests.support import switcher
from tests.support.policy import SCRATCH, model_directory
from tests.support.processes import run_ranks

CALL_S = 30.0
# Four ranks share two key-value heads.
FOUR = ScratchModel(hidden_size=24, intermediate_size=20, layers=2, heads=4, kv_heads=2)


@pytest.mark.parametrize(("ranks", "scratch"), [(2, SCRATCH), pytest.param(4, FOUR, marks=pytest.mark.slow)])
def test_bits_stay_training_goes_on_and_what_is_wrong_is_rolled_back(
    tmp_path: Path, ranks: int, scratch: ScratchModel
):
    side, valkey = IoThread(), EmbeddedValkey()
    url = side.run(valkey.start(tmp_path / "bus"), CALL_S)
    arenas = tmp_path / "arenas"
    role = {"redis": url, "arenas": str(arenas), "model": str(model_directory(tmp_path, scratch))}
    try:
        wrong = run_ranks(switcher.main, ranks, role)
    finally:
        side.run(valkey.stop(), CALL_S)
        side.close()
    assert wrong == [[]] * ranks
    # Arenas of cuts that are gone were given back.
    assert not arenas.exists() or list(arenas.iterdir()) == []
