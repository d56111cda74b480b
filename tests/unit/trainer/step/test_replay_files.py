"""Columns in files: what is read is what was kept, and nothing else is ever trained."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from earl.dispatch.read.reader import Dispatcher
from earl.errors import ReplayLost
from services.trainer.step.batch import Columns
from services.trainer.step.plan import ReplicaSequence, RoleColumn, TrainingPlan
from services.trainer.step.reader import read_columns
from services.trainer.step.replay_files import ReplayFiles
from tests.support.policy import columns_of, items_of, plan_of


def kept(directory: Path, *, reference: bool = False) -> tuple[ReplayFiles, TrainingPlan, Columns]:
    """The files of a batch of three, which was trained."""
    files = ReplayFiles(directory / "replay", on=True)
    items = items_of(7, 3)
    if reference:
        items = [replace(item, columns=(RoleColumn("reference", ("stage",)),)) for item in items]
    plan = plan_of(items, 1)
    columns = Columns()
    columns.take(plan.ranks[0])
    given = columns_of(plan_of(items_of(7, 3), 1))
    for index in range(3):
        for name, into in columns.of(index).items():
            into[:] = -np.arange(len(into)) if name == "reference" else given.of(index)[name]
    files.keep(plan, columns, writes=True)
    return files, plan, columns


def replays(plan: TrainingPlan, *, reference: bool = False) -> list[ReplicaSequence]:
    return [
        replace(item, ticket_id=100 + item.ticket_id, source=item.ticket_id, columns=(),
                reference_kept=reference)
        for item in plan.ranks[0]
    ]  # fmt: skip


def read(files: ReplayFiles, items: Sequence[ReplicaSequence]) -> Columns:
    columns = Columns()
    columns.take(items)
    files.read(columns)
    return columns


@pytest.mark.parametrize("reference", [False, True])
def test_what_is_read_is_what_was_trained(tmp_path: Path, reference: bool) -> None:
    files, plan, trained = kept(tmp_path, reference=reference)
    columns = read(files, replays(plan, reference=reference))
    assert np.array_equal(columns.tokens, trained.tokens)
    assert np.array_equal(columns.loss_mask, trained.loss_mask)
    assert np.array_equal(columns.logprobs, trained.logprobs)
    if reference:
        assert np.array_equal(columns.roles["reference"], trained.roles["reference"])
    # A run that asked for no reference log-probs before has none for its replays now.
    elif (missing := replays(plan, reference=True)[0]).total_tokens:
        with pytest.raises(ReplayLost, match="has nothing as reference"):
            read(files, [missing])


def test_every_unusable_file_is_named_and_nothing_is_read_from_an_arena(tmp_path: Path) -> None:
    files, plan, _ = kept(tmp_path)
    paths = [tmp_path / "replay" / f"{item.ticket_id}-1.safetensors" for item in plan.ranks[0]]
    paths[0].unlink()
    paths[2].write_bytes(paths[2].read_bytes()[:-3])
    asked = []

    class Arenas:
        async def read(self, reads: list[Any], deadline_s: float) -> None:
            asked.append(reads)

    items = [*items_of(50, 1), *replays(plan)]
    reading = read_columns(cast(Dispatcher, Arenas()), Columns(), items, 1.0, files)
    with pytest.raises(ReplayLost, match=r"7-1\.safetensors cannot be read.*9-1\.safetensors") as lost:
        asyncio.run(reading)
    assert lost.value.tickets == (107, 109) and not asked
    columns = Columns()
    asyncio.run(read_columns(cast(Dispatcher, Arenas()), columns, [items[0], items[2]], 1.0, files))
    [[sampled]] = asked
    # What was played comes first, and from an arena; the replay's columns lie behind it.
    assert sampled.keys == [items[0].key] and len(sampled.into["tokens"]) == items[0].total_tokens
    assert np.array_equal(columns.tokens_of(1), columns_of(plan).tokens_of(1))


def test_a_file_with_a_flipped_bit_or_of_another_trajectory_is_refused(tmp_path: Path) -> None:
    files, plan, _ = kept(tmp_path)
    [item, *_] = replays(plan)
    path = tmp_path / "replay" / "7-1.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ReplayLost, match="is damaged"):
        read(files, [item])
    path.write_bytes(whole)
    with pytest.raises(ReplayLost, match="is of 'trajectory/7/1', not of 'other'"):
        read(files, [replace(item, key="other")])
    with pytest.raises(ReplayLost, match=r"as tokens, not int32\["):
        read(files, [replace(item, total_tokens=item.total_tokens + 1)])
    save_file(load_file(path) | {"logprobs": np.zeros(item.total_tokens)}, path, {"key": item.key})
    with pytest.raises(ReplayLost, match="has float64"):
        read(files, [item])


def test_files_go_with_the_plan_that_no_longer_names_their_tickets(tmp_path: Path) -> None:
    files, plan, _ = kept(tmp_path)
    directory = tmp_path / "replay"
    (directory / "8-1.partial").touch()
    (directory / "notes.txt").touch()
    later = plan_of(items_of(50, 2), 1, 2, kept=((7, 8), (30, 40)))
    files.forget(later, deletes=False)
    assert len(list(directory.iterdir())) == 5
    files.forget(plan, deletes=True)  # its own stay
    assert len(list(directory.iterdir())) == 5
    files.forget(later, deletes=True)
    assert {path.name for path in directory.iterdir()} == {"7-1.safetensors", "notes.txt"}


def test_only_what_was_played_for_a_batch_of_reinforcement_learning_is_kept(tmp_path: Path) -> None:
    _, plan, columns = kept(tmp_path)
    for index, on, writes, objective in (
        (0, False, True, "policy_gradient"), (1, True, False, "policy_gradient"), (2, True, True, "imitate"),
    ):  # fmt: skip
        directory = tmp_path / str(index)
        files = ReplayFiles(directory, on=on)
        files.keep(replace(plan, objective=objective), columns, writes=writes)
        files.forget(plan, deletes=True)
        assert not directory.exists()
    again = tmp_path / "again"
    columns.items = tuple(replays(plan))
    ReplayFiles(again, on=True).keep(plan, columns, writes=True)
    assert list(again.iterdir()) == []
    # A disk that cannot be written is noticed when the file is missed.
    ReplayFiles(tmp_path / "no" / "such", on=True).keep(plan, columns_of(plan), writes=True)
