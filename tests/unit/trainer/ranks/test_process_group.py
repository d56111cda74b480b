"""The ranks' group: what is left of it once it is closed."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.tensor import debug

from services.trainer.ranks.process_group import Group
from services.trainer.ranks.subgroups import Subgroups
from tests.support.policy import configuration, model_directory, stepper_for, train

ALONE = ((0,),)
pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


def cached() -> int:
    """Counts the operations that DTensor has laid out: each entry holds its mesh and the mesh's groups."""
    fast = sum(debug._get_fast_path_sharding_prop_cache_stats())
    return fast + debug._get_python_sharding_prop_cache_info().currsize


def test_what_is_closed_is_in_no_cache(tmp_path: Path) -> None:
    """A process that another thread forks drops this thread's caches: a group in there would crash it."""
    group, model = Group("cpu"), model_directory(tmp_path)
    train(stepper_for(group, model, configuration()), 1)
    assert cached() > 0
    group.close()
    assert cached() == 0


def test_a_division_that_is_ended_is_in_no_cache(tmp_path: Path) -> None:
    group, model = Group("cpu"), model_directory(tmp_path)
    group.subgroups = Subgroups(0, 1, "cpu", kept=0)
    train(stepper_for(group, model, configuration()), 1)
    assert cached() > 0
    group.subgroups.take(ALONE, 5.0)
    group.subgroups.give(ALONE, 5.0)
    assert cached() == 0
    group.close()


def test_a_division_is_kept_for_when_it_is_taken_again() -> None:
    group = Group("cpu")
    subgroups = Subgroups(0, 1, "cpu", kept=2)
    first, second, third = (subgroups.take(ALONE, timeout_s) for timeout_s in (1.0, 2.0, 3.0))
    for timeout_s in (1.0, 2.0):
        subgroups.give(ALONE, timeout_s)
    assert subgroups.take(ALONE, 1.0) is first and subgroups.take(ALONE, 1.0) is first
    subgroups.give(ALONE, 1.0)
    # The first is used still; of the others the second is the one unused for longest.
    for timeout_s in (4.0, 5.0):
        subgroups.take(ALONE, timeout_s)
        subgroups.give(ALONE, timeout_s)
    assert subgroups.take(ALONE, 3.0) is third
    assert subgroups.take(ALONE, 1.0) is first
    assert subgroups.take(ALONE, 2.0) is not second
    group.close()


def test_the_mesh_over_a_division_is_the_same_each_time() -> None:
    group = Group("cpu")
    mesh = group.subgroups.take_mesh(ALONE)
    group.subgroups.give(ALONE)
    assert group.subgroups.take_mesh(ALONE) is mesh
    group.close()
