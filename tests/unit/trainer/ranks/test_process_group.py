"""The ranks' group: what is left of it once it is closed."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.tensor import debug

from services.trainer.ranks.process_group import Group
from tests.support.policy import configuration, model_directory, stepper_for, train

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


def cached() -> int:
    """Counts the operations that DTensor has laid out: each entry holds its mesh and the mesh's groups."""
    fast = sum(debug._get_fast_path_sharding_prop_cache_stats())
    return fast + debug._get_python_sharding_prop_cache_info().currsize


def test_what_is_closed_is_in_no_cache(tmp_path: Path) -> None:
    """A process that another thread forks drops this thread's caches: a group in there would crash it."""
    group, model = Group("cpu"), model_directory(tmp_path)
    for closed in (stepper_for(group, model, configuration()).mesh, group):
        train(stepper_for(group, model, configuration()), 1)
        assert cached() > 0
        closed.close()
        assert cached() == 0
