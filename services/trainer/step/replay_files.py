"""Columns of trained sequences in files, for later batches that train on them again.

    trained, before the commit ─► <run>/replay/<ticket>-<attempt>.safetensors ─► a later batch reads it
                                    └─ deleted once no plan names its ticket as kept

A file has the sequence's columns as they were trained on, the key that they had in the data plane, and a hash
of all of it. A file that is missing, torn or damaged, or of other columns than the plan means, is refused:
nothing of it is trained. Every rank of a trainer sees one directory, as for checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from earl.errors import ReplayLost
from earl.ticket_ranges import RangeSet
from services.trainer.ranks.process_group import Group
from services.trainer.step.batch import COLUMNS, Columns
from services.trainer.step.plan import ReplicaSequence, TrainingPlan

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
PARTIAL = ".partial"
DTYPES = dict(COLUMNS)
REMEDY = "the group is left out of the batch, and not trained again"


class ReplayFiles:
    """The files of one run. on: the run replays; otherwise what an earlier launch kept is deleted."""

    def __init__(self, directory: Path, *, on: bool) -> None:
        self._directory = directory
        self._on = on

    def keep(self, plan: TrainingPlan, columns: Columns, *, writes: bool) -> None:
        """Writes a file of each of a rank's sequences that was played for this batch.

        writes: on this rank, one of those that have them. What cannot be written is logged: it is missed when
        it is to be read.
        """
        if not self._on or not writes or plan.objective != "policy_gradient":
            return
        try:
            self._directory.mkdir(exist_ok=True)
            for index, item in enumerate(columns.items):
                if not item.source:
                    self._write(item, columns.of(index))
        except OSError as error:
            log.warning("trajectories cannot be kept for replay: %s", error)

    def read(self, columns: Columns) -> None:
        """Fills the columns of a rank's replays. Raises ReplayLost, for all whose files are unusable."""
        lost: dict[int, ReplayLost] = {}
        for index, item in enumerate(columns.items):
            if item.source:
                try:
                    self._read(item, columns.of(index))
                except ReplayLost as error:
                    lost[item.ticket_id] = error
        if lost:
            raise ReplayLost("; ".join(error.message for error in lost.values()), REMEDY, tuple(lost))

    def forget(self, plan: TrainingPlan, *, deletes: bool) -> None:
        """Deletes the files that no batch after this one may need. deletes: on this rank, the first."""
        if not deletes:
            return
        kept = RangeSet(plan.kept) | RangeSet.of(plan.ticket_ids)
        try:
            for path in list(self._directory.iterdir()) if self._directory.is_dir() else ():
                ticket = path.name.partition("-")[0]
                if path.name.endswith((SUFFIX, PARTIAL)) and ticket.isdecimal() and int(ticket) not in kept:
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("files of %s cannot be deleted: %s", self._directory, error)

    # --- within -----------------------------------------------------------------------------

    def _write(self, item: ReplicaSequence, columns: Mapping[str, np.ndarray]) -> None:
        path = self._path(item.ticket_id, item.attempt)
        metadata = {"key": item.key, "xxh3_128": _digest(item.key, columns)}
        partial = path.with_suffix(PARTIAL)
        partial.write_bytes(save(dict(columns), metadata))
        partial.replace(path)

    def _read(self, item: ReplicaSequence, into: Mapping[str, np.ndarray]) -> None:
        path = self._path(item.source, item.attempt)
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                names = list(file.keys())
                columns = {name: file.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise ReplayLost(f"{path.name} cannot be read: {error}", REMEDY) from None
        if metadata.get("key") != item.key:
            raise ReplayLost(f"{path.name} is of {metadata.get('key')!r}, not of {item.key!r}", REMEDY)
        for name in into:
            held = columns.get(name)
            if held is None or held.shape != (item.total_tokens,) or held.dtype != DTYPES[name]:
                kind = "nothing" if held is None else f"{held.dtype}{list(held.shape)}"
                raise ReplayLost(
                    f"{path.name} has {kind} as {name}, not {DTYPES[name]}[{item.total_tokens}]", REMEDY
                )
        if metadata.get("xxh3_128") != _digest(item.key, columns):
            raise ReplayLost(f"{path.name} is damaged: its hash is another", REMEDY)
        for name, array in into.items():
            array[:] = columns[name]

    def _path(self, ticket: int, attempt: int) -> Path:
        return self._directory / f"{ticket}-{attempt}{SUFFIX}"


def agree_on_read(group: Group, readable: bool, lost: Collection[int]) -> tuple[bool, Sequence[int]]:
    """(whether every rank could read its sequences, the replays that some rank could not). A collective."""
    if group.agree(readable):
        return True, ()
    parts = group.gather(np.array(sorted(lost), np.int64).tobytes())
    return False, sorted({int(ticket) for part in parts for ticket in np.frombuffer(part, np.int64)})


def _digest(key: str, columns: Mapping[str, np.ndarray]) -> str:
    """xxh3 of 128 bits of key, names and bytes of the columns, in the order of their names; hexadecimal."""
    digest = xxhash.xxh3_128(key.encode())
    for name in sorted(columns):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(columns[name]).view(np.uint8).data)
    return digest.hexdigest()
