"""The stored form of every record, and changes that are to be stored.

A record's stored form is "<head>|<msgpack>": the head (state and fence of a ticket) is what the
store compares before it sets, the rest is opaque to it. A ticket that is planned and trained keeps the
record with which it became ready: the records of the batch and of the trained ids say so for all of them.
A ticket of a group of several has none until it changes: its group's says what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from earl.history.format import Event
from earl.ticket_ranges import RangeSet
from services.scheduler.state.evaluations import EvaluationRecord
from services.scheduler.state.facts import Fact
from services.scheduler.state.group_lengths import StepLengths
from services.scheduler.state.outcomes import StepOutcomes
from services.scheduler.state.replay_groups import ReplayGroup
from services.scheduler.state.run import Batch, RunCounters
from services.scheduler.state.switch_records import StageRecord
from services.scheduler.state.tickets import Issue, Ticket
from services.scheduler.state.workers import Incarnations, WorkerRecord

Record = (
    Ticket
    | Issue
    | WorkerRecord
    | Incarnations
    | EvaluationRecord
    | StageRecord
    | StepOutcomes
    | StepLengths
    | ReplayGroup
    | RunCounters
    | Batch
    | dict[str, list[tuple[int, int]]]
    | list[tuple[int, int]]
    | list[str]
)


# kind of a record -> its type; the fields of "state" are distinguished by their names.
_TYPES: dict[tuple[str, str], object] = {
    ("ticket", ""): Ticket,
    ("group", ""): Issue,
    ("member", ""): WorkerRecord,
    ("lives", ""): Incarnations,
    ("evaluation", ""): EvaluationRecord,
    ("stage", ""): StageRecord,
    ("outcome", ""): StepOutcomes,
    ("lengths", ""): StepLengths,
    ("replay", ""): ReplayGroup,
    ("state", "run"): RunCounters,
    ("state", "batch"): Batch,
    ("state", "closed"): dict[str, list[tuple[int, int]]],
    ("state", "trained"): list[tuple[int, int]],
    ("state", "freed"): list[str],
}


KINDS = tuple(dict.fromkeys(kind for kind, _ in _TYPES))


_DECODERS = {key: msgspec.msgpack.Decoder(kind) for key, kind in _TYPES.items()}


_ENCODER = msgspec.msgpack.Encoder()


def encode(record: Record) -> bytes:
    """The record's stored form."""
    head = record.head if isinstance(record, Ticket) else ""
    return head.encode() + b"|" + _ENCODER.encode(record)


def decode(kind: str, field: str, data: bytes) -> Record:
    """The record of a stored form. Raises msgspec.DecodeError on bytes that are none."""
    _, _, body = data.partition(b"|")
    return _DECODERS[kind, field if kind == "state" else ""].decode(body)


def ranges_of(closed: Mapping[str, RangeSet]) -> dict[str, list[tuple[int, int]]]:
    return {bucket: list(ids.ranges) for bucket, ids in closed.items()}


class RecordChange(msgspec.Struct, frozen=True, gc=False):
    """One record to write. expected: the head it must have now ("" none yet, None any).

    data: its stored form, None to delete it.
    """

    kind: str
    field: str
    expected: str | None
    data: bytes | None


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """Changes of the ledger since the last call, to be stored in one step. history: how they came about."""

    records: tuple[RecordChange, ...] = ()
    facts: tuple[Fact, ...] = ()
    history: Sequence[Event] = ()

    def __bool__(self) -> bool:
        return bool(self.records or self.facts)
