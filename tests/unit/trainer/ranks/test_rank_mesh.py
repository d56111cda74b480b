"""A policy whose memory comes late, and what each rank of a replica computes of a micro-batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from earl.errors import IllegalParallelism
from earl.models.parallel import ContextParallel, TensorParallel
from earl.models.spec import load_spec
from earl.parallelism import Parallelism
from services.trainer.model.sharded_policy import ShardedPolicy
from services.trainer.ranks.process_group import Group
from services.trainer.ranks.rank_mesh import RankMesh
from services.trainer.step.batch import EMPTY, MicroBatch, build
from services.trainer.step.prefix_packing import bins
from services.trainer.step.step import Stepper
from tests.support.policy import (
    alone,
    columns_of,
    configuration,
    gathered,
    items_of,
    model_directory,
    plan_of,
    stepper_for,
    train,
)

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")


group = alone


def test_memory_may_come_parameter_by_parameter(group: Group, tmp_path: Path) -> None:
    model, config = model_directory(tmp_path), configuration()
    spec = load_spec(model)
    policy = ShardedPolicy.of(spec, RankMesh(group, Parallelism(), spec), config, allocated=False)
    assert [shard.box.shape for shard in policy.shards] == list(spec.shapes().values())
    assert all(shard.local.is_meta for shard in policy.shards)
    for count, shard in enumerate(reversed(policy.shards), 1):
        policy.allocate(shard)
        shard.local.fill_(count)
        assert sum(one.local.is_meta for one in policy.shards) == len(policy.shards) - count
    # Nothing that had memory lost it meanwhile.
    assert [float(shard.local.max()) for shard in reversed(policy.shards)] == [
        float(count) for count in range(1, len(policy.shards) + 1)
    ]
    policy.fill(model)
    late, usual = Stepper(policy, config), stepper_for(group, model, config)
    assert train(late, 1) == train(usual, 1)
    expected = gathered(usual)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in gathered(late).items())


@pytest.mark.parametrize(("tp", "cp"), [(2, 1), (1, 4), (2, 3), (3, 2)])
def test_ranks_of_a_replica_share_rows_and_trained_tokens(tp: int, cp: int) -> None:
    plan = plan_of(items_of(3, 9), 1)
    columns = columns_of(plan)
    chosen = bins(range(9), columns.tokens_of, columns.trained_from, 1000)[0]
    whole = build(columns, chosen, "token", 10, 9)
    assert any(whole.shared)
    assert np.array_equal(columns.tokens[whole.column_places], whole.targets)
    assert (np.diff(whole.source) > 0).all()
    rows, at = [], []
    for context in (ContextParallel(rank, cp) for rank in range(cp)):
        parts = [whole.of(TensorParallel(rank, tp), context) for rank in range(tp)]
        assert all(np.array_equal(part.tokens, parts[0].tokens) for part in parts)
        for part in parts:
            assert (part.lengths, part.shared) == (whole.lengths, whole.shared)
            assert np.array_equal(columns.tokens[part.column_places], part.targets)
            assert np.array_equal(part.source + context.rows(len(whole.tokens))[0], _sources(whole, part))
            at.append(part.column_places)
        rows.append(parts[0].tokens)
    assert np.array_equal(np.concatenate(rows), whole.tokens)
    assert sorted(np.concatenate(at)) == sorted(whole.column_places)


def _sources(whole: MicroBatch, part: MicroBatch) -> np.ndarray:
    return whole.source[np.isin(whole.column_places, part.column_places)]


def test_a_rank_without_trained_tokens_counts_nothing_and_has_a_row() -> None:
    parts = [EMPTY.of(TensorParallel(1, 2), ContextParallel(rank, 4)) for rank in range(4)]
    assert all(len(part.tokens) for part in parts)
    # As many rows as the sequences have, one of them made up.
    assert sum(len(part.tokens) for part in parts) == sum(parts[0].lengths) == 5
    assert all(len(part.column_places) == 0 and part.weights.tolist() == [0.0] for part in parts)
    assert all(int(part.source[0]) < len(part.tokens) for part in parts)


def test_a_parallelism_of_other_ranks_is_refused(group: Group, tmp_path: Path) -> None:
    spec = load_spec(model_directory(tmp_path))
    for layout in (Parallelism(2), Parallelism(1, tp=2), Parallelism(1, pp=2)):
        with pytest.raises(
            IllegalParallelism, match=r"no parallelism of a trainer of 1 ranks.*use one of tp1"
        ):
            RankMesh(group, layout, spec)
