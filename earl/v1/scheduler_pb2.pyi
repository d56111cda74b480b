from earl.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_ACCEPTED: _ClassVar[Verdict]
    VERDICT_RETRIED: _ClassVar[Verdict]
    VERDICT_REFUSED: _ClassVar[Verdict]

class Objective(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECTIVE_UNSPECIFIED: _ClassVar[Objective]
    OBJECTIVE_POLICY_GRADIENT: _ClassVar[Objective]
    OBJECTIVE_IMITATE: _ClassVar[Objective]

class TicketState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TICKET_STATE_UNSPECIFIED: _ClassVar[TicketState]
    TICKET_STATE_PENDING: _ClassVar[TicketState]
    TICKET_STATE_LEASED: _ClassVar[TicketState]
    TICKET_STATE_READY: _ClassVar[TicketState]
    TICKET_STATE_PLANNED: _ClassVar[TicketState]
VERDICT_UNSPECIFIED: Verdict
VERDICT_ACCEPTED: Verdict
VERDICT_RETRIED: Verdict
VERDICT_REFUSED: Verdict
OBJECTIVE_UNSPECIFIED: Objective
OBJECTIVE_POLICY_GRADIENT: Objective
OBJECTIVE_IMITATE: Objective
TICKET_STATE_UNSPECIFIED: TicketState
TICKET_STATE_PENDING: TicketState
TICKET_STATE_LEASED: TicketState
TICKET_STATE_READY: TicketState
TICKET_STATE_PLANNED: TicketState

class JoinRequest(_message.Message):
    __slots__ = ("worker", "capacity", "parallelism", "devices")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    capacity: int
    parallelism: _common_pb2.Parallelism
    devices: _containers.RepeatedCompositeFieldContainer[WorkerDevice]
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., capacity: _Optional[int] = ..., parallelism: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[WorkerDevice, _Mapping]]] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("lease_s", "epoch", "version", "weight_keys")
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_KEYS_FIELD_NUMBER: _ClassVar[int]
    lease_s: float
    epoch: int
    version: int
    weight_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lease_s: _Optional[float] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., weight_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("worker", "reason")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    reason: str
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("worker", "running", "version", "gauges", "spans", "transfers", "parallelism", "epoch", "devices", "sequences", "switches")
    class GaugesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GAUGES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    running: int
    version: int
    gauges: _containers.ScalarMap[str, float]
    spans: _containers.RepeatedCompositeFieldContainer[BusySpan]
    transfers: _containers.RepeatedCompositeFieldContainer[TransferTotals]
    parallelism: _common_pb2.Parallelism
    epoch: int
    devices: _containers.RepeatedCompositeFieldContainer[WorkerDevice]
    sequences: _containers.RepeatedCompositeFieldContainer[LiveSequence]
    switches: _containers.RepeatedCompositeFieldContainer[Switch]
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., running: _Optional[int] = ..., version: _Optional[int] = ..., gauges: _Optional[_Mapping[str, float]] = ..., spans: _Optional[_Iterable[_Union[BusySpan, _Mapping]]] = ..., transfers: _Optional[_Iterable[_Union[TransferTotals, _Mapping]]] = ..., parallelism: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., epoch: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[WorkerDevice, _Mapping]]] = ..., sequences: _Optional[_Iterable[_Union[LiveSequence, _Mapping]]] = ..., switches: _Optional[_Iterable[_Union[Switch, _Mapping]]] = ...) -> None: ...

class LiveSequence(_message.Message):
    __slots__ = ("session", "ticket_id", "engine", "context_tokens", "response_tokens")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    session: str
    ticket_id: int
    engine: int
    context_tokens: int
    response_tokens: int
    def __init__(self, session: _Optional[str] = ..., ticket_id: _Optional[int] = ..., engine: _Optional[int] = ..., context_tokens: _Optional[int] = ..., response_tokens: _Optional[int] = ...) -> None: ...

class SequenceMove(_message.Message):
    __slots__ = ("session", "engine")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    session: str
    engine: int
    def __init__(self, session: _Optional[str] = ..., engine: _Optional[int] = ...) -> None: ...

class WorkerDevice(_message.Message):
    __slots__ = ("kind", "id", "number", "total_bytes", "free_bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    id: str
    number: int
    total_bytes: int
    free_bytes: int
    def __init__(self, kind: _Optional[str] = ..., id: _Optional[str] = ..., number: _Optional[int] = ..., total_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ...) -> None: ...

class BusySpan(_message.Message):
    __slots__ = ("what", "start_ns", "end_ns")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    START_NS_FIELD_NUMBER: _ClassVar[int]
    END_NS_FIELD_NUMBER: _ClassVar[int]
    what: str
    start_ns: int
    end_ns: int
    def __init__(self, what: _Optional[str] = ..., start_ns: _Optional[int] = ..., end_ns: _Optional[int] = ...) -> None: ...

class TransferTotals(_message.Message):
    __slots__ = ("path", "size_bytes", "seconds", "transfers", "retries")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    seconds: float
    transfers: int
    retries: int
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., transfers: _Optional[int] = ..., retries: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("stop", "epoch", "next_s", "moves", "refused_context_tokens")
    STOP_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_S_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    stop: bool
    epoch: int
    next_s: float
    moves: _containers.RepeatedCompositeFieldContainer[SequenceMove]
    refused_context_tokens: int
    def __init__(self, stop: _Optional[bool] = ..., epoch: _Optional[int] = ..., next_s: _Optional[float] = ..., moves: _Optional[_Iterable[_Union[SequenceMove, _Mapping]]] = ..., refused_context_tokens: _Optional[int] = ...) -> None: ...

class SamplingFilters(_message.Message):
    __slots__ = ("repetition_penalty", "top_k", "top_p", "min_p")
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    repetition_penalty: float
    top_k: int
    top_p: float
    min_p: float
    def __init__(self, repetition_penalty: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("ticket_id", "attempt", "fence", "purpose", "actor", "group_id", "environment", "task_json", "env_seed", "sample_seed", "min_version", "temperature", "episode_s", "lease_s", "max_turns", "evaluation", "traceparent", "transcript", "label", "seat", "seats", "frozen_version", "filters", "pinned_version", "recorded", "recorded_reward", "record", "engine")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    TASK_JSON_FIELD_NUMBER: _ClassVar[int]
    ENV_SEED_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    EPISODE_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    MAX_TURNS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    FROZEN_VERSION_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSION_FIELD_NUMBER: _ClassVar[int]
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    RECORDED_REWARD_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ticket_id: int
    attempt: int
    fence: int
    purpose: _common_pb2.Purpose
    actor: _common_pb2.Actor
    group_id: int
    environment: str
    task_json: str
    env_seed: int
    sample_seed: int
    min_version: int
    temperature: float
    episode_s: float
    lease_s: float
    max_turns: int
    evaluation: str
    traceparent: str
    transcript: bool
    label: str
    seat: int
    seats: int
    frozen_version: int
    filters: SamplingFilters
    pinned_version: int
    recorded: _containers.RepeatedCompositeFieldContainer[RecordedTurn]
    recorded_reward: float
    record: bool
    engine: int
    def __init__(self, ticket_id: _Optional[int] = ..., attempt: _Optional[int] = ..., fence: _Optional[int] = ..., purpose: _Optional[_Union[_common_pb2.Purpose, str]] = ..., actor: _Optional[_Union[_common_pb2.Actor, str]] = ..., group_id: _Optional[int] = ..., environment: _Optional[str] = ..., task_json: _Optional[str] = ..., env_seed: _Optional[int] = ..., sample_seed: _Optional[int] = ..., min_version: _Optional[int] = ..., temperature: _Optional[float] = ..., episode_s: _Optional[float] = ..., lease_s: _Optional[float] = ..., max_turns: _Optional[int] = ..., evaluation: _Optional[str] = ..., traceparent: _Optional[str] = ..., transcript: _Optional[bool] = ..., label: _Optional[str] = ..., seat: _Optional[int] = ..., seats: _Optional[int] = ..., frozen_version: _Optional[int] = ..., filters: _Optional[_Union[SamplingFilters, _Mapping]] = ..., pinned_version: _Optional[int] = ..., recorded: _Optional[_Iterable[_Union[RecordedTurn, _Mapping]]] = ..., recorded_reward: _Optional[float] = ..., record: _Optional[bool] = ..., engine: _Optional[int] = ...) -> None: ...

class RecordedTurn(_message.Message):
    __slots__ = ("observed", "acted")
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    ACTED_FIELD_NUMBER: _ClassVar[int]
    observed: _containers.RepeatedScalarFieldContainer[int]
    acted: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, observed: _Optional[_Iterable[int]] = ..., acted: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaseTicketsRequest(_message.Message):
    __slots__ = ("worker", "credit", "wait_s", "newest_fence")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FENCE_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    credit: int
    wait_s: float
    newest_fence: int
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., credit: _Optional[int] = ..., wait_s: _Optional[float] = ..., newest_fence: _Optional[int] = ...) -> None: ...

class LeaseTicketsResponse(_message.Message):
    __slots__ = ("tickets", "stop")
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    tickets: _containers.RepeatedCompositeFieldContainer[Ticket]
    stop: bool
    def __init__(self, tickets: _Optional[_Iterable[_Union[Ticket, _Mapping]]] = ..., stop: _Optional[bool] = ...) -> None: ...

class AttemptRef(_message.Message):
    __slots__ = ("ticket_id", "attempt", "fence")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    ticket_id: int
    attempt: int
    fence: int
    def __init__(self, ticket_id: _Optional[int] = ..., attempt: _Optional[int] = ..., fence: _Optional[int] = ...) -> None: ...

class RenewLeasesRequest(_message.Message):
    __slots__ = ("worker", "attempts")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    attempts: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., attempts: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ...) -> None: ...

class RenewLeasesResponse(_message.Message):
    __slots__ = ("lost",)
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: _containers.RepeatedCompositeFieldContainer[AttemptRef]
    def __init__(self, lost: _Optional[_Iterable[_Union[AttemptRef, _Mapping]]] = ...) -> None: ...

class AttemptResult(_message.Message):
    __slots__ = ("attempt", "ending", "reward", "prompt_tokens", "total_tokens", "trained_tokens", "turns", "oldest_version", "newest_version", "descriptor_key", "metrics", "message", "turn_tokens", "transcript", "recorded")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_KEY_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TURN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    attempt: AttemptRef
    ending: _common_pb2.Ending
    reward: float
    prompt_tokens: int
    total_tokens: int
    trained_tokens: int
    turns: int
    oldest_version: int
    newest_version: int
    descriptor_key: str
    metrics: _containers.ScalarMap[str, float]
    message: str
    turn_tokens: _containers.RepeatedScalarFieldContainer[int]
    transcript: _containers.RepeatedCompositeFieldContainer[TranscriptTurn]
    recorded: _containers.RepeatedCompositeFieldContainer[RecordedTurn]
    def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., ending: _Optional[_Union[_common_pb2.Ending, str]] = ..., reward: _Optional[float] = ..., prompt_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., trained_tokens: _Optional[int] = ..., turns: _Optional[int] = ..., oldest_version: _Optional[int] = ..., newest_version: _Optional[int] = ..., descriptor_key: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ..., message: _Optional[str] = ..., turn_tokens: _Optional[_Iterable[int]] = ..., transcript: _Optional[_Iterable[_Union[TranscriptTurn, _Mapping]]] = ..., recorded: _Optional[_Iterable[_Union[RecordedTurn, _Mapping]]] = ...) -> None: ...

class TranscriptTurn(_message.Message):
    __slots__ = ("role", "text", "tokens", "sampled")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    role: str
    text: str
    tokens: int
    sampled: _containers.RepeatedCompositeFieldContainer[SampledToken]
    def __init__(self, role: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[int] = ..., sampled: _Optional[_Iterable[_Union[SampledToken, _Mapping]]] = ...) -> None: ...

class SampledToken(_message.Message):
    __slots__ = ("id", "text", "logprob", "version")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    logprob: float
    version: int
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., logprob: _Optional[float] = ..., version: _Optional[int] = ...) -> None: ...

class CompleteTicketsRequest(_message.Message):
    __slots__ = ("worker", "results")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    results: _containers.RepeatedCompositeFieldContainer[AttemptResult]
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., results: _Optional[_Iterable[_Union[AttemptResult, _Mapping]]] = ...) -> None: ...

class CompleteTicketsResponse(_message.Message):
    __slots__ = ("items",)
    class Item(_message.Message):
        __slots__ = ("attempt", "verdict", "reason")
        ATTEMPT_FIELD_NUMBER: _ClassVar[int]
        VERDICT_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        attempt: AttemptRef
        verdict: Verdict
        reason: str
        def __init__(self, attempt: _Optional[_Union[AttemptRef, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., reason: _Optional[str] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[CompleteTicketsResponse.Item]
    def __init__(self, items: _Optional[_Iterable[_Union[CompleteTicketsResponse.Item, _Mapping]]] = ...) -> None: ...

class RoleColumn(_message.Message):
    __slots__ = ("role", "keys", "offset")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    role: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    offset: int
    def __init__(self, role: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., offset: _Optional[int] = ...) -> None: ...

class BatchItem(_message.Message):
    __slots__ = ("ticket_id", "attempt", "descriptor_key", "advantage", "total_tokens", "start_token", "stop_token", "group_id", "reward", "reference_keys", "position", "reference_offset", "masked", "protected_kl", "source", "reference_kept", "columns")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_KEY_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    START_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_KEYS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_KL_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_KEPT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ticket_id: int
    attempt: int
    descriptor_key: str
    advantage: float
    total_tokens: int
    start_token: int
    stop_token: int
    group_id: int
    reward: float
    reference_keys: _containers.RepeatedScalarFieldContainer[str]
    position: int
    reference_offset: int
    masked: bool
    protected_kl: float
    source: int
    reference_kept: bool
    columns: _containers.RepeatedCompositeFieldContainer[RoleColumn]
    def __init__(self, ticket_id: _Optional[int] = ..., attempt: _Optional[int] = ..., descriptor_key: _Optional[str] = ..., advantage: _Optional[float] = ..., total_tokens: _Optional[int] = ..., start_token: _Optional[int] = ..., stop_token: _Optional[int] = ..., group_id: _Optional[int] = ..., reward: _Optional[float] = ..., reference_keys: _Optional[_Iterable[str]] = ..., position: _Optional[int] = ..., reference_offset: _Optional[int] = ..., masked: _Optional[bool] = ..., protected_kl: _Optional[float] = ..., source: _Optional[int] = ..., reference_kept: _Optional[bool] = ..., columns: _Optional[_Iterable[_Union[RoleColumn, _Mapping]]] = ...) -> None: ...

class RankItems(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[BatchItem]
    def __init__(self, items: _Optional[_Iterable[_Union[BatchItem, _Mapping]]] = ...) -> None: ...

class BatchPlan(_message.Message):
    __slots__ = ("batch_id", "version", "objective", "ranks", "total_tokens", "trained_tokens", "publish", "checkpoint", "progress", "first_of_phase", "kept", "teacher_weight")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OF_PHASE_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    TEACHER_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    version: int
    objective: Objective
    ranks: _containers.RepeatedCompositeFieldContainer[RankItems]
    total_tokens: int
    trained_tokens: int
    publish: bool
    checkpoint: bool
    progress: float
    first_of_phase: bool
    kept: _containers.RepeatedCompositeFieldContainer[TicketRange]
    teacher_weight: float
    def __init__(self, batch_id: _Optional[int] = ..., version: _Optional[int] = ..., objective: _Optional[_Union[Objective, str]] = ..., ranks: _Optional[_Iterable[_Union[RankItems, _Mapping]]] = ..., total_tokens: _Optional[int] = ..., trained_tokens: _Optional[int] = ..., publish: _Optional[bool] = ..., checkpoint: _Optional[bool] = ..., progress: _Optional[float] = ..., first_of_phase: _Optional[bool] = ..., kept: _Optional[_Iterable[_Union[TicketRange, _Mapping]]] = ..., teacher_weight: _Optional[float] = ...) -> None: ...

class NextBatchRequest(_message.Message):
    __slots__ = ("worker", "ranks", "wait_s", "lost_replays")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    LOST_REPLAYS_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    ranks: int
    wait_s: float
    lost_replays: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., ranks: _Optional[int] = ..., wait_s: _Optional[float] = ..., lost_replays: _Optional[_Iterable[int]] = ...) -> None: ...

class NextBatchResponse(_message.Message):
    __slots__ = ("plan", "stop", "best_version", "keep_versions")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEEP_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    plan: BatchPlan
    stop: bool
    best_version: int
    keep_versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, plan: _Optional[_Union[BatchPlan, _Mapping]] = ..., stop: _Optional[bool] = ..., best_version: _Optional[int] = ..., keep_versions: _Optional[_Iterable[int]] = ...) -> None: ...

class CommitBatchRequest(_message.Message):
    __slots__ = ("worker", "batch_id", "version", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    batch_id: int
    version: int
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., batch_id: _Optional[int] = ..., version: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class CommitBatchResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TicketRange(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: int
    stop: int
    def __init__(self, start: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class RecordCheckpointRequest(_message.Message):
    __slots__ = ("worker", "version", "path", "consumed")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    version: int
    path: str
    consumed: _containers.RepeatedCompositeFieldContainer[TicketRange]
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., version: _Optional[int] = ..., path: _Optional[str] = ..., consumed: _Optional[_Iterable[_Union[TicketRange, _Mapping]]] = ...) -> None: ...

class RecordCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReconcileRequest(_message.Message):
    __slots__ = ("worker", "version", "next_batch_id", "consumed")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    version: int
    next_batch_id: int
    consumed: _containers.RepeatedCompositeFieldContainer[TicketRange]
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., version: _Optional[int] = ..., next_batch_id: _Optional[int] = ..., consumed: _Optional[_Iterable[_Union[TicketRange, _Mapping]]] = ...) -> None: ...

class ReconcileResponse(_message.Message):
    __slots__ = ("rolled_back",)
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    rolled_back: int
    def __init__(self, rolled_back: _Optional[int] = ...) -> None: ...

class ReferenceItem(_message.Message):
    __slots__ = ("ticket_id", "attempt", "descriptor_key", "total_tokens")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_KEY_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ticket_id: int
    attempt: int
    descriptor_key: str
    total_tokens: int
    def __init__(self, ticket_id: _Optional[int] = ..., attempt: _Optional[int] = ..., descriptor_key: _Optional[str] = ..., total_tokens: _Optional[int] = ...) -> None: ...

class ReferenceRankItems(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ReferenceItem]
    def __init__(self, items: _Optional[_Iterable[_Union[ReferenceItem, _Mapping]]] = ...) -> None: ...

class LeaseReferenceRequest(_message.Message):
    __slots__ = ("worker", "ranks", "credit_tokens", "wait_s", "role")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    ranks: int
    credit_tokens: int
    wait_s: float
    role: str
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., ranks: _Optional[int] = ..., credit_tokens: _Optional[int] = ..., wait_s: _Optional[float] = ..., role: _Optional[str] = ...) -> None: ...

class LeaseReferenceResponse(_message.Message):
    __slots__ = ("fence", "ranks", "stop", "waiting_tokens")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    fence: int
    ranks: _containers.RepeatedCompositeFieldContainer[ReferenceRankItems]
    stop: bool
    waiting_tokens: int
    def __init__(self, fence: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[ReferenceRankItems, _Mapping]]] = ..., stop: _Optional[bool] = ..., waiting_tokens: _Optional[int] = ...) -> None: ...

class ReferenceResult(_message.Message):
    __slots__ = ("ticket_id", "attempt", "reference_keys", "reference_offset", "score")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_KEYS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ticket_id: int
    attempt: int
    reference_keys: _containers.RepeatedScalarFieldContainer[str]
    reference_offset: int
    score: float
    def __init__(self, ticket_id: _Optional[int] = ..., attempt: _Optional[int] = ..., reference_keys: _Optional[_Iterable[str]] = ..., reference_offset: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...

class CompleteReferenceRequest(_message.Message):
    __slots__ = ("worker", "fence", "results", "lost", "role")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    fence: int
    results: _containers.RepeatedCompositeFieldContainer[ReferenceResult]
    lost: _containers.RepeatedCompositeFieldContainer[ReferenceItem]
    role: str
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., fence: _Optional[int] = ..., results: _Optional[_Iterable[_Union[ReferenceResult, _Mapping]]] = ..., lost: _Optional[_Iterable[_Union[ReferenceItem, _Mapping]]] = ..., role: _Optional[str] = ...) -> None: ...

class CompleteReferenceResponse(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: int
    def __init__(self, refused: _Optional[int] = ...) -> None: ...

class LedgerCounts(_message.Message):
    __slots__ = ("issued", "trained", "evaluated", "dropped", "pending", "leased", "ready", "planned", "replayed")
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ISSUED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    issued: int
    trained: int
    evaluated: int
    dropped: _containers.ScalarMap[str, int]
    pending: int
    leased: int
    ready: int
    planned: int
    replayed: int
    def __init__(self, issued: _Optional[int] = ..., trained: _Optional[int] = ..., evaluated: _Optional[int] = ..., dropped: _Optional[_Mapping[str, int]] = ..., pending: _Optional[int] = ..., leased: _Optional[int] = ..., ready: _Optional[int] = ..., planned: _Optional[int] = ..., replayed: _Optional[int] = ...) -> None: ...

class RoleProgress(_message.Message):
    __slots__ = ("role", "waiting", "leased", "done")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    role: str
    waiting: int
    leased: int
    done: int
    def __init__(self, role: _Optional[str] = ..., waiting: _Optional[int] = ..., leased: _Optional[int] = ..., done: _Optional[int] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "parallelism", "capacity", "running", "version", "silent_s", "gauges", "transfers", "devices")
    class GaugesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    GAUGES_FIELD_NUMBER: _ClassVar[int]
    TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    parallelism: _common_pb2.Parallelism
    capacity: int
    running: int
    version: int
    silent_s: float
    gauges: _containers.ScalarMap[str, float]
    transfers: _containers.RepeatedCompositeFieldContainer[TransferTotals]
    devices: _containers.RepeatedCompositeFieldContainer[WorkerDevice]
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., parallelism: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., capacity: _Optional[int] = ..., running: _Optional[int] = ..., version: _Optional[int] = ..., silent_s: _Optional[float] = ..., gauges: _Optional[_Mapping[str, float]] = ..., transfers: _Optional[_Iterable[_Union[TransferTotals, _Mapping]]] = ..., devices: _Optional[_Iterable[_Union[WorkerDevice, _Mapping]]] = ...) -> None: ...

class StageStatus(_message.Message):
    __slots__ = ("stage", "running", "chosen", "step", "sentence", "pinned", "epoch", "switching", "last")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SWITCHING_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    stage: _common_pb2.Stage
    running: _common_pb2.Parallelism
    chosen: _common_pb2.Parallelism
    step: int
    sentence: str
    pinned: bool
    epoch: int
    switching: Switch
    last: Switch
    def __init__(self, stage: _Optional[_Union[_common_pb2.Stage, str]] = ..., running: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., chosen: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., step: _Optional[int] = ..., sentence: _Optional[str] = ..., pinned: _Optional[bool] = ..., epoch: _Optional[int] = ..., switching: _Optional[_Union[Switch, _Mapping]] = ..., last: _Optional[_Union[Switch, _Mapping]] = ...) -> None: ...

class Switch(_message.Message):
    __slots__ = ("epoch", "before", "after", "reason", "rolled_back", "message", "stall_s", "seconds", "sequences_continued", "moved_bytes", "max_logprob_difference", "figures")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STALL_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_CONTINUED_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROB_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    before: _common_pb2.Parallelism
    after: _common_pb2.Parallelism
    reason: str
    rolled_back: bool
    message: str
    stall_s: float
    seconds: float
    sequences_continued: int
    moved_bytes: int
    max_logprob_difference: float
    figures: _common_pb2.SwitchFigures
    def __init__(self, epoch: _Optional[int] = ..., before: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., after: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., reason: _Optional[str] = ..., rolled_back: _Optional[bool] = ..., message: _Optional[str] = ..., stall_s: _Optional[float] = ..., seconds: _Optional[float] = ..., sequences_continued: _Optional[int] = ..., moved_bytes: _Optional[int] = ..., max_logprob_difference: _Optional[float] = ..., figures: _Optional[_Union[_common_pb2.SwitchFigures, _Mapping]] = ...) -> None: ...

class EvaluationResult(_message.Message):
    __slots__ = ("name", "version", "episodes", "done", "win_rate", "mean_reward", "metrics", "reward_low", "reward_high", "win_low", "win_high", "gain", "gain_low", "gain_high", "gain_episodes", "failed")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WIN_RATE_FIELD_NUMBER: _ClassVar[int]
    MEAN_REWARD_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    REWARD_LOW_FIELD_NUMBER: _ClassVar[int]
    REWARD_HIGH_FIELD_NUMBER: _ClassVar[int]
    WIN_LOW_FIELD_NUMBER: _ClassVar[int]
    WIN_HIGH_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    GAIN_LOW_FIELD_NUMBER: _ClassVar[int]
    GAIN_HIGH_FIELD_NUMBER: _ClassVar[int]
    GAIN_EPISODES_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    episodes: int
    done: int
    win_rate: float
    mean_reward: float
    metrics: _containers.ScalarMap[str, float]
    reward_low: float
    reward_high: float
    win_low: float
    win_high: float
    gain: float
    gain_low: float
    gain_high: float
    gain_episodes: int
    failed: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., episodes: _Optional[int] = ..., done: _Optional[int] = ..., win_rate: _Optional[float] = ..., mean_reward: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ..., reward_low: _Optional[float] = ..., reward_high: _Optional[float] = ..., win_low: _Optional[float] = ..., win_high: _Optional[float] = ..., gain: _Optional[float] = ..., gain_low: _Optional[float] = ..., gain_high: _Optional[float] = ..., gain_episodes: _Optional[int] = ..., failed: _Optional[int] = ...) -> None: ...

class LengthQuantiles(_message.Message):
    __slots__ = ("mean", "p50", "p95", "max")
    MEAN_FIELD_NUMBER: _ClassVar[int]
    P50_FIELD_NUMBER: _ClassVar[int]
    P95_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    mean: float
    p50: float
    p95: float
    max: float
    def __init__(self, mean: _Optional[float] = ..., p50: _Optional[float] = ..., p95: _Optional[float] = ..., max: _Optional[float] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("run", "phase", "step", "steps", "version", "ledger", "workers", "evaluations", "episode_tokens", "turn_tokens", "metrics", "elapsed_s", "done", "message", "best_version", "roles", "stages", "heartbeat_s", "devices", "paced", "move")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    EPISODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TURN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    BEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    PACED_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    run: str
    phase: str
    step: int
    steps: int
    version: int
    ledger: LedgerCounts
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    evaluations: _containers.RepeatedCompositeFieldContainer[EvaluationResult]
    episode_tokens: LengthQuantiles
    turn_tokens: LengthQuantiles
    metrics: _containers.ScalarMap[str, float]
    elapsed_s: float
    done: bool
    message: str
    best_version: int
    roles: _containers.RepeatedCompositeFieldContainer[RoleProgress]
    stages: _containers.RepeatedCompositeFieldContainer[StageStatus]
    heartbeat_s: float
    devices: str
    paced: str
    move: DeviceMove
    def __init__(self, run: _Optional[str] = ..., phase: _Optional[str] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., version: _Optional[int] = ..., ledger: _Optional[_Union[LedgerCounts, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., evaluations: _Optional[_Iterable[_Union[EvaluationResult, _Mapping]]] = ..., episode_tokens: _Optional[_Union[LengthQuantiles, _Mapping]] = ..., turn_tokens: _Optional[_Union[LengthQuantiles, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., elapsed_s: _Optional[float] = ..., done: _Optional[bool] = ..., message: _Optional[str] = ..., best_version: _Optional[int] = ..., roles: _Optional[_Iterable[_Union[RoleProgress, _Mapping]]] = ..., stages: _Optional[_Iterable[_Union[StageStatus, _Mapping]]] = ..., heartbeat_s: _Optional[float] = ..., devices: _Optional[str] = ..., paced: _Optional[str] = ..., move: _Optional[_Union[DeviceMove, _Mapping]] = ...) -> None: ...

class ListTicketsRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class ListTicketsResponse(_message.Message):
    __slots__ = ("tickets",)
    TICKETS_FIELD_NUMBER: _ClassVar[int]
    tickets: _containers.RepeatedCompositeFieldContainer[TicketStatus]
    def __init__(self, tickets: _Optional[_Iterable[_Union[TicketStatus, _Mapping]]] = ...) -> None: ...

class TicketStatus(_message.Message):
    __slots__ = ("ticket_id", "group_id", "purpose", "evaluation", "state", "attempt", "worker", "tokens", "age_s", "environment")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    ticket_id: int
    group_id: int
    purpose: _common_pb2.Purpose
    evaluation: str
    state: TicketState
    attempt: int
    worker: str
    tokens: int
    age_s: float
    environment: str
    def __init__(self, ticket_id: _Optional[int] = ..., group_id: _Optional[int] = ..., purpose: _Optional[_Union[_common_pb2.Purpose, str]] = ..., evaluation: _Optional[str] = ..., state: _Optional[_Union[TicketState, str]] = ..., attempt: _Optional[int] = ..., worker: _Optional[str] = ..., tokens: _Optional[int] = ..., age_s: _Optional[float] = ..., environment: _Optional[str] = ...) -> None: ...

class StopRunRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class StopRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetParallelismRequest(_message.Message):
    __slots__ = ("stage", "parallelism", "pin", "wait_s")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    stage: _common_pb2.Stage
    parallelism: _common_pb2.Parallelism
    pin: bool
    wait_s: float
    def __init__(self, stage: _Optional[_Union[_common_pb2.Stage, str]] = ..., parallelism: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., pin: _Optional[bool] = ..., wait_s: _Optional[float] = ...) -> None: ...

class SetParallelismResponse(_message.Message):
    __slots__ = ("epoch", "outcome")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    outcome: Switch
    def __init__(self, epoch: _Optional[int] = ..., outcome: _Optional[_Union[Switch, _Mapping]] = ...) -> None: ...

class MoveDevicesRequest(_message.Message):
    __slots__ = ("giver", "taker", "devices", "wait_s", "giver_layout", "taker_layout")
    GIVER_FIELD_NUMBER: _ClassVar[int]
    TAKER_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    GIVER_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TAKER_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    giver: _common_pb2.Stage
    taker: _common_pb2.Stage
    devices: int
    wait_s: float
    giver_layout: _common_pb2.Parallelism
    taker_layout: _common_pb2.Parallelism
    def __init__(self, giver: _Optional[_Union[_common_pb2.Stage, str]] = ..., taker: _Optional[_Union[_common_pb2.Stage, str]] = ..., devices: _Optional[int] = ..., wait_s: _Optional[float] = ..., giver_layout: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., taker_layout: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ...) -> None: ...

class MoveDevicesResponse(_message.Message):
    __slots__ = ("move",)
    MOVE_FIELD_NUMBER: _ClassVar[int]
    move: DeviceMove
    def __init__(self, move: _Optional[_Union[DeviceMove, _Mapping]] = ...) -> None: ...

class DeviceSplit(_message.Message):
    __slots__ = ("rollout", "trainer", "reference")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    rollout: int
    trainer: int
    reference: int
    def __init__(self, rollout: _Optional[int] = ..., trainer: _Optional[int] = ..., reference: _Optional[int] = ...) -> None: ...

class DeviceMove(_message.Message):
    __slots__ = ("number", "before", "after", "holds", "reason", "phase", "rolled_back", "message", "stall_s", "seconds", "layouts")
    class LayoutsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STALL_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    number: int
    before: DeviceSplit
    after: DeviceSplit
    holds: DeviceSplit
    reason: str
    phase: str
    rolled_back: bool
    message: str
    stall_s: float
    seconds: float
    layouts: _containers.ScalarMap[str, str]
    def __init__(self, number: _Optional[int] = ..., before: _Optional[_Union[DeviceSplit, _Mapping]] = ..., after: _Optional[_Union[DeviceSplit, _Mapping]] = ..., holds: _Optional[_Union[DeviceSplit, _Mapping]] = ..., reason: _Optional[str] = ..., phase: _Optional[str] = ..., rolled_back: _Optional[bool] = ..., message: _Optional[str] = ..., stall_s: _Optional[float] = ..., seconds: _Optional[float] = ..., layouts: _Optional[_Mapping[str, str]] = ...) -> None: ...
