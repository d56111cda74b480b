"""What the ledger keeps: plain records with their encoding, and the facts it states.

A record's stored form is "<head>|<msgpack>": the head (state and fence of a ticket) is what the
store compares before it sets, the rest is opaque to it. A ticket that is planned and trained keeps the
record with which it became ready: the records of the batch and of the trained ids say so for all of them.
One of a group of several has none until it changes: its group's says what it is.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from earl.ticket_ranges import RangeSet
from services.scheduler.state.switch_records import StageRecord, SwitchEnded


class TicketState(StrEnum):
    """Where a ticket is. pending → leased → ready → planned → trained | evaluated | dropped."""

    PENDING = "pending"
    LEASED = "leased"
    READY = "ready"
    PLANNED = "planned"
    TRAINED = "trained"
    EVALUATED = "evaluated"
    DROPPED = "dropped"


LIVE = frozenset({TicketState.PENDING, TicketState.LEASED, TicketState.READY, TicketState.PLANNED})
# Which of these a ticket is in follows from two records for all: the planned batch, and the trained ids.
BATCHED = frozenset({TicketState.READY, TicketState.PLANNED, TicketState.TRAINED})
_HEADS = {state: f"{TicketState.READY if state in BATCHED else state}:" for state in TicketState}


class Purpose(StrEnum):
    TRAIN = "train"
    EVALUATE = "evaluate"
    WARMUP = "warmup"


class EpisodeEnding(StrEnum):
    OK = "ok"
    TRUNCATED = "truncated"
    ENV_ERROR = "env_error"
    INFRA_ERROR = "infra_error"
    TIMEOUT = "timeout"


class Reason(StrEnum):
    """Why a ticket was dropped."""

    GROUP_INCOMPLETE = "group_incomplete"
    TOO_STALE = "too_stale"
    ROLLED_BACK = "rolled_back"
    PHASE_OVER = "phase_over"
    EVALUATION_FAILED = "evaluation_failed"
    # Ids below a manifest's that this ledger never knew: its store was lost.
    FORGOTTEN = "forgotten"


class TicketVerdict(StrEnum):
    ACCEPTED = "accepted"
    RETRIED = "retried"
    REFUSED = "refused"


class Result(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """What a finished attempt reports. Lengths in tokens; versions of its loss-masked tokens."""

    ending: EpisodeEnding = EpisodeEnding.OK
    reward: float = 0.0
    prompt_tokens: int = 0
    total_tokens: int = 0
    trained_tokens: int = 0
    turns: int = 0
    oldest_version: int = 0
    newest_version: int = 0
    descriptor_key: str = ""
    metrics: dict[str, float] = {}
    message: str = ""
    turn_tokens: list[int] = []

    @property
    def win(self) -> float:
        """0..1: the metric "win"; without it, whether an episode that came to its end earned anything."""
        earned = self.ending is EpisodeEnding.OK and self.reward > 0
        return min(1.0, max(0.0, self.metrics.get("win", float(earned))))


class Ticket(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """One episode to run. `floor`: no loss-masked token of it is, or will be, of an older version.

    index: its group's place in the schedule of its purpose (see admission.places); for an evaluation the
    number of its instance. broken: an attempt ended in a way that the instance itself is to blame for.
    """

    id: int
    group: int
    purpose: Purpose
    index: int = 0
    env_seed: int
    sample_seed: int
    min_version: int
    temperature: float
    evaluation: str = ""
    # Its conversation is wanted with the result.
    transcript: bool = False
    state: TicketState = TicketState.PENDING
    fence: int = 0
    attempt: int = 0
    failures: int = 0
    broken: bool = False
    floor: int = 0
    worker: str = ""
    incarnation: int = 0
    reason: str = ""
    result: Result | None = None

    @property
    def head(self) -> str:
        """What the stored record begins with: it does not change while a batch takes the ticket."""
        return _HEADS[self.state] + str(self.fence)

    @property
    def bucket(self) -> str:
        """The part of the ledger's identity that counts it: a state, or "dropped:<reason>"."""
        return f"dropped:{self.reason}" if self.state is TicketState.DROPPED else self.state


class Issue(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False, frozen=True):
    """A group of new tickets: `first` and the ids after it, each of whose samplers has a seed here.

    transcripts: ids of those whose conversation is wanted.
    """

    group: int
    purpose: Purpose
    index: int
    first: int
    env_seed: int
    sample_seeds: list[int]
    min_version: int
    temperature: float
    evaluation: str = ""
    transcripts: list[int] = []

    def tickets(self) -> list[Ticket]:
        """As they were issued."""
        return [
            Ticket(
                id=number,
                group=self.group,
                purpose=self.purpose,
                index=self.index,
                env_seed=self.env_seed,
                sample_seed=seed,
                min_version=self.min_version,
                floor=self.min_version,
                temperature=self.temperature,
                evaluation=self.evaluation,
                transcript=number in self.transcripts,
            )
            for number, seed in enumerate(self.sample_seeds, self.first)
        ]


class Attempt(msgspec.Struct, frozen=True):
    """Names one try at a ticket."""

    ticket_id: int
    attempt: int
    fence: int


class WorkerRecord(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """One life of one worker that takes part in the run.

    parallelism: (dp, tp, cp, pp), and the epoch of the switch that cut it so, 0 as it joined.
    """

    name: str
    incarnation: int
    stage: int = 0
    address: str = ""
    capacity: int = 0
    parallelism: tuple[int, int, int, int] = (1, 1, 1, 1)
    epoch: int = 0
    # Newest policy version it reported; not kept over a restart of the scheduler.
    version: int = 0


class Lives(msgspec.Struct, frozen=True):
    """Incarnations that took part under one worker's name, in the order of their first join."""

    incarnations: tuple[int, ...] = ()


class Batch(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The one batch that is planned and not yet committed. lost: members whose arena is gone."""

    id: int
    version: int
    purpose: Purpose
    tickets: list[int]
    publish: bool
    checkpoint: bool
    progress: float
    first_of_phase: bool
    lost: list[int] = []
    handouts: int = 0


class EvaluationRecord(msgspec.Struct, kw_only=True, omit_defaults=True, frozen=True):
    """One evaluation. Episodes are told apart by their instance's index, 0 to episodes - 1.

    reward_data, win_data: little-endian float64 and float32 by index, NaN where none was done; empty
    before the first. metric_sums: over the episodes that were done. setting: what it was played under, for
    a resumed run may have other tasks or bounds; only evaluations of one setting are compared.
    """

    name: str
    version: int
    episodes: int
    done: int = 0
    failed: int = 0
    reward_data: bytes = b""
    win_data: bytes = b""
    metric_sums: dict[str, float] = {}
    setting: str = ""

    @property
    def finished(self) -> bool:
        return self.done + self.failed >= self.episodes

    @property
    def metrics(self) -> dict[str, float]:
        """Means over the episodes done, and the fraction of episodes that failed."""
        means = {name: total / self.done for name, total in self.metric_sums.items()} if self.done else {}
        return {**means, "failed": self.failed / self.episodes if self.episodes else 0.0}

    def with_result(self, index: int, result: Result) -> EvaluationRecord:
        """The evaluation after the episode of one more instance."""
        sums = {name: self.metric_sums.get(name, 0.0) + value for name, value in result.metrics.items()}
        return msgspec.structs.replace(
            self,
            done=self.done + 1,
            reward_data=_with(self.reward_data, "<d", self.episodes, index, result.reward),
            win_data=_with(self.win_data, "<f", self.episodes, index, result.win),
            metric_sums=self.metric_sums | sums,
        )

    def with_failure(self) -> EvaluationRecord:
        """The evaluation after one more instance that no attempt could play."""
        return msgspec.structs.replace(self, failed=self.failed + 1)


def _with(data: bytes, form: str, count: int, index: int, value: float) -> bytes:
    """`count` packed numbers, NaN unless set, of which the index-th becomes `value`."""
    packed = bytearray(data or struct.pack(form, math.nan) * count)
    struct.pack_into(form, packed, index * struct.calcsize(form), value)
    return bytes(packed)


class RunRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counters and versions. version: the one being trained, 0 until a trainer group reconciled.

    takes: purpose -> index -> how many instances were given up there, so that a substitute is played.
    """

    version: int = 0
    published: int = 0
    weight_keys: list[str] = []
    trainer: str = ""
    trainer_incarnation: int = 0
    next_ticket: int = 1
    next_group: int = 1
    next_batch: int = 1
    last_batch: int = 0
    fence: int = 0
    takes: dict[str, dict[int, int]] = {}
    train_over: bool = False
    elapsed_s: float = 0.0
    # The longest that a member was ever allowed to be silent.
    silent_s: float = 0.0
    train_began_s: float | None = None


Record = (
    Ticket
    | Issue
    | WorkerRecord
    | Lives
    | EvaluationRecord
    | StageRecord
    | RunRecord
    | Batch
    | dict[str, list[tuple[int, int]]]
    | list[tuple[int, int]]
    | list[str]
)

# kind of a record -> its type; the fields of "state" are told apart by their names.
_TYPES: dict[tuple[str, str], object] = {
    ("ticket", ""): Ticket,
    ("group", ""): Issue,
    ("member", ""): WorkerRecord,
    ("lives", ""): Lives,
    ("evaluation", ""): EvaluationRecord,
    ("stage", ""): StageRecord,
    ("state", "run"): RunRecord,
    ("state", "batch"): Batch,
    ("state", "closed"): dict[str, list[tuple[int, int]]],
    ("state", "trained"): list[tuple[int, int]],
    ("state", "freed"): list[str],
}
KINDS = ("ticket", "group", "member", "lives", "evaluation", "stage", "state")
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


def ranges_of(closed: dict[str, RangeSet]) -> dict[str, list[tuple[int, int]]]:
    return {bucket: list(ids.ranges) for bucket, ids in closed.items()}


class TrajectoryReady(msgspec.Struct, frozen=True, gc=False):
    ticket_id: int
    attempt: int
    worker: str
    purpose: Purpose
    result: Result


@dataclass(frozen=True, slots=True)
class BatchPlanned:
    batch_id: int
    version: int
    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True)
class BatchCommitted:
    batch_id: int
    version: int
    descriptor_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EvaluationDone:
    """baseline: the run's first evaluation, None if this is the one."""

    evaluation: EvaluationRecord
    baseline: EvaluationRecord | None = None


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    member: WorkerRecord


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    member: WorkerRecord
    reason: str


Fact = (
    TrajectoryReady | BatchPlanned | BatchCommitted | EvaluationDone | WorkerJoined | WorkerLeft | SwitchEnded
)


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
    """What the ledger decided since it was last asked, to be made durable in one step."""

    records: tuple[RecordChange, ...] = ()
    facts: tuple[Fact, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.records or self.facts)
