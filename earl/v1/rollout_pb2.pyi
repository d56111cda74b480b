from earl.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineStatus(_message.Message):
    __slots__ = ("name", "tp", "version", "running", "waiting", "kv_used_fraction", "generated_tokens", "prefilled_tokens")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USED_FRACTION_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    name: str
    tp: int
    version: int
    running: int
    waiting: int
    kv_used_fraction: float
    generated_tokens: int
    prefilled_tokens: int
    def __init__(self, name: _Optional[str] = ..., tp: _Optional[int] = ..., version: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_used_fraction: _Optional[float] = ..., generated_tokens: _Optional[int] = ..., prefilled_tokens: _Optional[int] = ...) -> None: ...

class GetRolloutStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRolloutStatusResponse(_message.Message):
    __slots__ = ("worker", "engines", "epoch", "episodes", "parallelism")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    engines: _containers.RepeatedCompositeFieldContainer[EngineStatus]
    epoch: int
    episodes: int
    parallelism: _common_pb2.Parallelism
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., engines: _Optional[_Iterable[_Union[EngineStatus, _Mapping]]] = ..., epoch: _Optional[int] = ..., episodes: _Optional[int] = ..., parallelism: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ...) -> None: ...

class ReparallelizeRolloutRequest(_message.Message):
    __slots__ = ("epoch", "parallelism", "prepare_s", "quiesce_s", "switch_s", "verify_s", "logprob_tolerance", "reason", "deadlines")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    PREPARE_S_FIELD_NUMBER: _ClassVar[int]
    QUIESCE_S_FIELD_NUMBER: _ClassVar[int]
    SWITCH_S_FIELD_NUMBER: _ClassVar[int]
    VERIFY_S_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DEADLINES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    parallelism: _common_pb2.Parallelism
    prepare_s: float
    quiesce_s: float
    switch_s: float
    verify_s: float
    logprob_tolerance: float
    reason: str
    deadlines: _common_pb2.SwitchDeadlines
    def __init__(self, epoch: _Optional[int] = ..., parallelism: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., prepare_s: _Optional[float] = ..., quiesce_s: _Optional[float] = ..., switch_s: _Optional[float] = ..., verify_s: _Optional[float] = ..., logprob_tolerance: _Optional[float] = ..., reason: _Optional[str] = ..., deadlines: _Optional[_Union[_common_pb2.SwitchDeadlines, _Mapping]] = ...) -> None: ...

class ReparallelizeRolloutResponse(_message.Message):
    __slots__ = ("epoch", "parallelism", "rolled_back", "message", "stall_s", "sequences_continued", "kv_moved_bytes", "max_logprob_difference", "cold", "kv_recomputed_tokens", "seconds", "figures")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STALL_S_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_CONTINUED_FIELD_NUMBER: _ClassVar[int]
    KV_MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROB_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    COLD_FIELD_NUMBER: _ClassVar[int]
    KV_RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    parallelism: _common_pb2.Parallelism
    rolled_back: bool
    message: str
    stall_s: float
    sequences_continued: int
    kv_moved_bytes: int
    max_logprob_difference: float
    cold: bool
    kv_recomputed_tokens: int
    seconds: float
    figures: _common_pb2.SwitchFigures
    def __init__(self, epoch: _Optional[int] = ..., parallelism: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., rolled_back: _Optional[bool] = ..., message: _Optional[str] = ..., stall_s: _Optional[float] = ..., sequences_continued: _Optional[int] = ..., kv_moved_bytes: _Optional[int] = ..., max_logprob_difference: _Optional[float] = ..., cold: _Optional[bool] = ..., kv_recomputed_tokens: _Optional[int] = ..., seconds: _Optional[float] = ..., figures: _Optional[_Union[_common_pb2.SwitchFigures, _Mapping]] = ...) -> None: ...

class AlternateRolloutRequest(_message.Message):
    __slots__ = ("turn", "asleep")
    TURN_FIELD_NUMBER: _ClassVar[int]
    ASLEEP_FIELD_NUMBER: _ClassVar[int]
    turn: int
    asleep: bool
    def __init__(self, turn: _Optional[int] = ..., asleep: _Optional[bool] = ...) -> None: ...

class AlternateRolloutResponse(_message.Message):
    __slots__ = ("seconds",)
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    def __init__(self, seconds: _Optional[float] = ...) -> None: ...

class DrainRolloutRequest(_message.Message):
    __slots__ = ("wait_s",)
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    wait_s: float
    def __init__(self, wait_s: _Optional[float] = ...) -> None: ...

class DrainRolloutResponse(_message.Message):
    __slots__ = ("remaining",)
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    remaining: int
    def __init__(self, remaining: _Optional[int] = ...) -> None: ...
