from earl.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Event(_message.Message):
    __slots__ = ("time_ns", "source", "trajectory_ready", "batch_planned", "batch_committed", "weights_published", "parallelism_changed", "worker_joined", "worker_left", "environment_quarantined", "evaluation_done")
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORY_READY_FIELD_NUMBER: _ClassVar[int]
    BATCH_PLANNED_FIELD_NUMBER: _ClassVar[int]
    BATCH_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_CHANGED_FIELD_NUMBER: _ClassVar[int]
    WORKER_JOINED_FIELD_NUMBER: _ClassVar[int]
    WORKER_LEFT_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_DONE_FIELD_NUMBER: _ClassVar[int]
    time_ns: int
    source: str
    trajectory_ready: TrajectoryReady
    batch_planned: BatchPlanned
    batch_committed: BatchCommitted
    weights_published: WeightsPublished
    parallelism_changed: ParallelismChanged
    worker_joined: WorkerJoined
    worker_left: WorkerLeft
    environment_quarantined: EnvironmentQuarantined
    evaluation_done: EvaluationDone
    def __init__(self, time_ns: _Optional[int] = ..., source: _Optional[str] = ..., trajectory_ready: _Optional[_Union[TrajectoryReady, _Mapping]] = ..., batch_planned: _Optional[_Union[BatchPlanned, _Mapping]] = ..., batch_committed: _Optional[_Union[BatchCommitted, _Mapping]] = ..., weights_published: _Optional[_Union[WeightsPublished, _Mapping]] = ..., parallelism_changed: _Optional[_Union[ParallelismChanged, _Mapping]] = ..., worker_joined: _Optional[_Union[WorkerJoined, _Mapping]] = ..., worker_left: _Optional[_Union[WorkerLeft, _Mapping]] = ..., environment_quarantined: _Optional[_Union[EnvironmentQuarantined, _Mapping]] = ..., evaluation_done: _Optional[_Union[EvaluationDone, _Mapping]] = ...) -> None: ...

class TrajectoryReady(_message.Message):
    __slots__ = ("ticket_id", "attempt", "descriptor_key", "prompt_tokens", "total_tokens", "turns", "reward", "oldest_version", "newest_version", "ending", "worker", "purpose", "environment", "task", "env_seed", "seat")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_KEY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ENV_SEED_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    ticket_id: int
    attempt: int
    descriptor_key: str
    prompt_tokens: int
    total_tokens: int
    turns: int
    reward: float
    oldest_version: int
    newest_version: int
    ending: _common_pb2.Ending
    worker: str
    purpose: _common_pb2.Purpose
    environment: str
    task: int
    env_seed: int
    seat: int
    def __init__(self, ticket_id: _Optional[int] = ..., attempt: _Optional[int] = ..., descriptor_key: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., turns: _Optional[int] = ..., reward: _Optional[float] = ..., oldest_version: _Optional[int] = ..., newest_version: _Optional[int] = ..., ending: _Optional[_Union[_common_pb2.Ending, str]] = ..., worker: _Optional[str] = ..., purpose: _Optional[_Union[_common_pb2.Purpose, str]] = ..., environment: _Optional[str] = ..., task: _Optional[int] = ..., env_seed: _Optional[int] = ..., seat: _Optional[int] = ...) -> None: ...

class BatchPlanned(_message.Message):
    __slots__ = ("batch_id", "version", "sequences", "tokens")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    version: int
    sequences: int
    tokens: int
    def __init__(self, batch_id: _Optional[int] = ..., version: _Optional[int] = ..., sequences: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class BatchCommitted(_message.Message):
    __slots__ = ("batch_id", "version", "descriptor_keys")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_KEYS_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    version: int
    descriptor_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, batch_id: _Optional[int] = ..., version: _Optional[int] = ..., descriptor_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class WeightsPublished(_message.Message):
    __slots__ = ("version", "descriptor_keys", "size_bytes")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTOR_KEYS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    version: int
    descriptor_keys: _containers.RepeatedScalarFieldContainer[str]
    size_bytes: int
    def __init__(self, version: _Optional[int] = ..., descriptor_keys: _Optional[_Iterable[str]] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class ParallelismChanged(_message.Message):
    __slots__ = ("stage", "epoch", "before", "after", "reason", "stall_s", "rolled_back", "message", "sequences_continued", "moved_bytes", "figures")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STALL_S_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_CONTINUED_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    stage: _common_pb2.Stage
    epoch: int
    before: _common_pb2.Parallelism
    after: _common_pb2.Parallelism
    reason: str
    stall_s: float
    rolled_back: bool
    message: str
    sequences_continued: int
    moved_bytes: int
    figures: _common_pb2.SwitchFigures
    def __init__(self, stage: _Optional[_Union[_common_pb2.Stage, str]] = ..., epoch: _Optional[int] = ..., before: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., after: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., reason: _Optional[str] = ..., stall_s: _Optional[float] = ..., rolled_back: _Optional[bool] = ..., message: _Optional[str] = ..., sequences_continued: _Optional[int] = ..., moved_bytes: _Optional[int] = ..., figures: _Optional[_Union[_common_pb2.SwitchFigures, _Mapping]] = ...) -> None: ...

class WorkerJoined(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ...) -> None: ...

class WorkerLeft(_message.Message):
    __slots__ = ("worker", "reason")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    reason: str
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class EnvironmentQuarantined(_message.Message):
    __slots__ = ("environment", "host", "reason")
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    environment: str
    host: str
    reason: str
    def __init__(self, environment: _Optional[str] = ..., host: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class EvaluationDone(_message.Message):
    __slots__ = ("name", "version", "episodes", "mean_reward", "win_rate", "metrics")
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
    MEAN_REWARD_FIELD_NUMBER: _ClassVar[int]
    WIN_RATE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    episodes: int
    mean_reward: float
    win_rate: float
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., episodes: _Optional[int] = ..., mean_reward: _Optional[float] = ..., win_rate: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...
