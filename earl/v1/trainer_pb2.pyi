from earl.v1 import common_pb2 as _common_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetTrainerStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTrainerStatusResponse(_message.Message):
    __slots__ = ("worker", "parallelism", "epoch", "version", "batch_id", "doing", "resident_bytes")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    DOING_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    worker: _common_pb2.Worker
    parallelism: _common_pb2.Parallelism
    epoch: int
    version: int
    batch_id: int
    doing: str
    resident_bytes: int
    def __init__(self, worker: _Optional[_Union[_common_pb2.Worker, _Mapping]] = ..., parallelism: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., batch_id: _Optional[int] = ..., doing: _Optional[str] = ..., resident_bytes: _Optional[int] = ...) -> None: ...

class ReparallelizeTrainerRequest(_message.Message):
    __slots__ = ("epoch", "stage", "parallelism", "prepare_s", "quiesce_s", "switch_s", "verify_s", "reason", "logprob_tolerance", "deadlines")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    PREPARE_S_FIELD_NUMBER: _ClassVar[int]
    QUIESCE_S_FIELD_NUMBER: _ClassVar[int]
    SWITCH_S_FIELD_NUMBER: _ClassVar[int]
    VERIFY_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    DEADLINES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    stage: _common_pb2.Stage
    parallelism: _common_pb2.Parallelism
    prepare_s: float
    quiesce_s: float
    switch_s: float
    verify_s: float
    reason: str
    logprob_tolerance: float
    deadlines: _common_pb2.SwitchDeadlines
    def __init__(self, epoch: _Optional[int] = ..., stage: _Optional[_Union[_common_pb2.Stage, str]] = ..., parallelism: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., prepare_s: _Optional[float] = ..., quiesce_s: _Optional[float] = ..., switch_s: _Optional[float] = ..., verify_s: _Optional[float] = ..., reason: _Optional[str] = ..., logprob_tolerance: _Optional[float] = ..., deadlines: _Optional[_Union[_common_pb2.SwitchDeadlines, _Mapping]] = ...) -> None: ...

class ReparallelizeTrainerResponse(_message.Message):
    __slots__ = ("epoch", "parallelism", "rolled_back", "message", "stall_s", "moved_bytes", "peak_extra_bytes", "max_logprob_difference", "seconds", "figures")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARALLELISM_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STALL_S_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_EXTRA_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROB_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    parallelism: _common_pb2.Parallelism
    rolled_back: bool
    message: str
    stall_s: float
    moved_bytes: int
    peak_extra_bytes: int
    max_logprob_difference: float
    seconds: float
    figures: _common_pb2.SwitchFigures
    def __init__(self, epoch: _Optional[int] = ..., parallelism: _Optional[_Union[_common_pb2.Parallelism, _Mapping]] = ..., rolled_back: _Optional[bool] = ..., message: _Optional[str] = ..., stall_s: _Optional[float] = ..., moved_bytes: _Optional[int] = ..., peak_extra_bytes: _Optional[int] = ..., max_logprob_difference: _Optional[float] = ..., seconds: _Optional[float] = ..., figures: _Optional[_Union[_common_pb2.SwitchFigures, _Mapping]] = ...) -> None: ...

class SaveCheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveCheckpointResponse(_message.Message):
    __slots__ = ("path", "version")
    PATH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    path: str
    version: int
    def __init__(self, path: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...
