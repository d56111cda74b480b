"""`earl bench reshard`: who holds and needs what, by numpy."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.reshard.cases import (
    CARRIER,
    CASES,
    ReshardCase,
    needed_bytes,
    owned,
    rank_boxes,
    slices,
    values,
)
from benchmarks.reshard.gather import Buckets
from earl.models.spec import ModelSpec

# Lengths that neither 3 nor 4 ranks share out evenly; one rank's part of the norms is shorter.
TINY = ModelSpec("llama", 18, 1, 4, 4, 5, 22, 31, tied=True)
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@cases
def test_slices_fill_every_reader_once(case: ReshardCase):
    shapes = TINY.shapes()
    local = [
        {name: values(name, shapes[name])[box.slices()] for name, box in rank_boxes(TINY, case, rank).items()}
        for rank in range(case.trainers)
    ]
    copied = 0
    for rank in range(case.readers):
        own = owned(TINY, case, rank)
        found = {name: np.full(one.shape, -1, np.int64) for name, one in own.items()}
        for one in slices(TINY, case, rank):
            into = found[one.parameter][one.target.slices()]
            assert (into == -1).all()
            into[:] = local[one.trainer][one.source][one.box.slices()]
            copied += into.size * CARRIER.itemsize
        for name, one in own.items():
            for part in one.parts:
                whole = values(part.source, shapes[part.source])
                assert (found[name][part.target.slices()] == whole[part.box.slices()]).all(), name
    assert copied == needed_bytes(TINY, case)


@cases
def test_a_trainer_of_another_size_or_one_engine_rank_needs_the_model_once(case: ReshardCase):
    once = TINY.parameters * CARRIER.itemsize
    sharded_bytes = (
        sum(np.prod(shape) for name, shape in TINY.shapes().items() if "_proj" in name) * CARRIER.itemsize
    )
    wanted = case.readers * (once - sharded_bytes) + sharded_bytes if case.engine else once
    assert needed_bytes(TINY, case) == wanted


@cases
def test_buckets_send_every_element_once(case: ReshardCase):
    buckets = Buckets(TINY, case)
    seen = {name: np.zeros(shape, int) for name, shape in TINY.shapes().items()}
    for bucket, sent in enumerate(buckets.sent):
        for rank in range(case.trainers):
            last = 0
            for name, box, at in buckets.parts(bucket, rank):
                assert at.start == last and at.stop - at.start == box.size
                seen[name][box.slices()] += 1
                last = at.stop
            assert last <= sent
    assert all((count == 1).all() for count in seen.values())
