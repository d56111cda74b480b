from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_OPERATOR: _ClassVar[Role]
    ROLE_WORKER: _ClassVar[Role]
    ROLE_ENVIRONMENT: _ClassVar[Role]
    ROLE_VIEWER: _ClassVar[Role]

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    STAGE_ROLLOUT: _ClassVar[Stage]
    STAGE_REFERENCE: _ClassVar[Stage]
    STAGE_TRAINER: _ClassVar[Stage]
    STAGE_TEACHER: _ClassVar[Stage]
    STAGE_REWARD_MODEL: _ClassVar[Stage]

class Ending(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENDING_UNSPECIFIED: _ClassVar[Ending]
    ENDING_OK: _ClassVar[Ending]
    ENDING_TRUNCATED: _ClassVar[Ending]
    ENDING_ENV_ERROR: _ClassVar[Ending]
    ENDING_INFRA_ERROR: _ClassVar[Ending]
    ENDING_TIMEOUT: _ClassVar[Ending]

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PURPOSE_UNSPECIFIED: _ClassVar[Purpose]
    PURPOSE_TRAIN: _ClassVar[Purpose]
    PURPOSE_EVALUATE: _ClassVar[Purpose]
    PURPOSE_WARMUP: _ClassVar[Purpose]
    PURPOSE_REPLAY: _ClassVar[Purpose]

class Actor(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTOR_UNSPECIFIED: _ClassVar[Actor]
    ACTOR_POLICY: _ClassVar[Actor]
    ACTOR_RANDOM_LEGAL: _ClassVar[Actor]
ROLE_UNSPECIFIED: Role
ROLE_OPERATOR: Role
ROLE_WORKER: Role
ROLE_ENVIRONMENT: Role
ROLE_VIEWER: Role
STAGE_UNSPECIFIED: Stage
STAGE_ROLLOUT: Stage
STAGE_REFERENCE: Stage
STAGE_TRAINER: Stage
STAGE_TEACHER: Stage
STAGE_REWARD_MODEL: Stage
ENDING_UNSPECIFIED: Ending
ENDING_OK: Ending
ENDING_TRUNCATED: Ending
ENDING_ENV_ERROR: Ending
ENDING_INFRA_ERROR: Ending
ENDING_TIMEOUT: Ending
PURPOSE_UNSPECIFIED: Purpose
PURPOSE_TRAIN: Purpose
PURPOSE_EVALUATE: Purpose
PURPOSE_WARMUP: Purpose
PURPOSE_REPLAY: Purpose
ACTOR_UNSPECIFIED: Actor
ACTOR_POLICY: Actor
ACTOR_RANDOM_LEGAL: Actor
ROLES_FIELD_NUMBER: _ClassVar[int]
roles: _descriptor.FieldDescriptor
AUDITED_FIELD_NUMBER: _ClassVar[int]
audited: _descriptor.FieldDescriptor

class Parallelism(_message.Message):
    __slots__ = ("dp", "tp", "cp", "pp")
    DP_FIELD_NUMBER: _ClassVar[int]
    TP_FIELD_NUMBER: _ClassVar[int]
    CP_FIELD_NUMBER: _ClassVar[int]
    PP_FIELD_NUMBER: _ClassVar[int]
    dp: int
    tp: int
    cp: int
    pp: int
    def __init__(self, dp: _Optional[int] = ..., tp: _Optional[int] = ..., cp: _Optional[int] = ..., pp: _Optional[int] = ...) -> None: ...

class SwitchDeadlines(_message.Message):
    __slots__ = ("prepare_s", "load_s", "quiesce_s", "switch_s", "verify_s", "recover_s")
    PREPARE_S_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    QUIESCE_S_FIELD_NUMBER: _ClassVar[int]
    SWITCH_S_FIELD_NUMBER: _ClassVar[int]
    VERIFY_S_FIELD_NUMBER: _ClassVar[int]
    RECOVER_S_FIELD_NUMBER: _ClassVar[int]
    prepare_s: float
    load_s: float
    quiesce_s: float
    switch_s: float
    verify_s: float
    recover_s: float
    def __init__(self, prepare_s: _Optional[float] = ..., load_s: _Optional[float] = ..., quiesce_s: _Optional[float] = ..., switch_s: _Optional[float] = ..., verify_s: _Optional[float] = ..., recover_s: _Optional[float] = ...) -> None: ...

class SwitchFigures(_message.Message):
    __slots__ = ("stall_s", "seconds", "sequences_continued", "moved_bytes", "kv_recomputed_tokens", "peak_extra_bytes", "max_logprob_difference", "cold", "logprobs_compared", "start_s", "weights_s", "kv_ahead_s", "kv_rounds", "interrupt_s", "kv_rest_s", "resume_s", "end_s", "competing_s", "phases_s")
    class PhasesSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STALL_S_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_CONTINUED_FIELD_NUMBER: _ClassVar[int]
    MOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KV_RECOMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PEAK_EXTRA_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGPROB_DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    COLD_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_COMPARED_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_S_FIELD_NUMBER: _ClassVar[int]
    KV_AHEAD_S_FIELD_NUMBER: _ClassVar[int]
    KV_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_S_FIELD_NUMBER: _ClassVar[int]
    KV_REST_S_FIELD_NUMBER: _ClassVar[int]
    RESUME_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    COMPETING_S_FIELD_NUMBER: _ClassVar[int]
    PHASES_S_FIELD_NUMBER: _ClassVar[int]
    stall_s: float
    seconds: float
    sequences_continued: int
    moved_bytes: int
    kv_recomputed_tokens: int
    peak_extra_bytes: int
    max_logprob_difference: float
    cold: bool
    logprobs_compared: int
    start_s: float
    weights_s: float
    kv_ahead_s: float
    kv_rounds: int
    interrupt_s: float
    kv_rest_s: float
    resume_s: float
    end_s: float
    competing_s: float
    phases_s: _containers.ScalarMap[str, float]
    def __init__(self, stall_s: _Optional[float] = ..., seconds: _Optional[float] = ..., sequences_continued: _Optional[int] = ..., moved_bytes: _Optional[int] = ..., kv_recomputed_tokens: _Optional[int] = ..., peak_extra_bytes: _Optional[int] = ..., max_logprob_difference: _Optional[float] = ..., cold: _Optional[bool] = ..., logprobs_compared: _Optional[int] = ..., start_s: _Optional[float] = ..., weights_s: _Optional[float] = ..., kv_ahead_s: _Optional[float] = ..., kv_rounds: _Optional[int] = ..., interrupt_s: _Optional[float] = ..., kv_rest_s: _Optional[float] = ..., resume_s: _Optional[float] = ..., end_s: _Optional[float] = ..., competing_s: _Optional[float] = ..., phases_s: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("name", "incarnation", "stage", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    stage: Stage
    address: str
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., stage: _Optional[_Union[Stage, str]] = ..., address: _Optional[str] = ...) -> None: ...
