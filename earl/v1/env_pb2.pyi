from earl.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[HostMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[HostMessage, _Mapping]]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[GatewayMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[GatewayMessage, _Mapping]]] = ...) -> None: ...

class ServeRequest(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[GatewayMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[GatewayMessage, _Mapping]]] = ...) -> None: ...

class ServeResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[HostMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[HostMessage, _Mapping]]] = ...) -> None: ...

class PlayRequest(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ClientMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ClientMessage, _Mapping]]] = ...) -> None: ...

class PlayResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[SessionMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[SessionMessage, _Mapping]]] = ...) -> None: ...

class HostMessage(_message.Message):
    __slots__ = ("hello", "result", "progress", "credit", "drain", "pong")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    result: Result
    progress: Progress
    credit: Credit
    drain: Drain
    pong: Pong
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., result: _Optional[_Union[Result, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., credit: _Optional[_Union[Credit, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class GatewayMessage(_message.Message):
    __slots__ = ("welcome", "reset", "step", "close", "cancel", "drain", "ping")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    reset: Reset
    step: Step
    close: Close
    cancel: Cancel
    drain: Drain
    ping: Ping
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., reset: _Optional[_Union[Reset, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class ClientMessage(_message.Message):
    __slots__ = ("open", "step", "close", "cancel")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    open: Open
    step: Step
    close: Close
    cancel: Cancel
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class SessionMessage(_message.Message):
    __slots__ = ("result", "progress")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    result: Result
    progress: Progress
    def __init__(self, result: _Optional[_Union[Result, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class EnvironmentInfo(_message.Message):
    __slots__ = ("name", "description", "schema_hash", "min_reward", "max_reward", "tools_json", "seats", "selects_tools")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_HASH_FIELD_NUMBER: _ClassVar[int]
    MIN_REWARD_FIELD_NUMBER: _ClassVar[int]
    MAX_REWARD_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    SELECTS_TOOLS_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    schema_hash: str
    min_reward: float
    max_reward: float
    tools_json: str
    seats: int
    selects_tools: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., schema_hash: _Optional[str] = ..., min_reward: _Optional[float] = ..., max_reward: _Optional[float] = ..., tools_json: _Optional[str] = ..., seats: _Optional[int] = ..., selects_tools: _Optional[bool] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "host", "instance", "epoch", "environments", "capacity")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    host: str
    instance: int
    epoch: int
    environments: _containers.RepeatedCompositeFieldContainer[EnvironmentInfo]
    capacity: int
    def __init__(self, protocol: _Optional[int] = ..., host: _Optional[str] = ..., instance: _Optional[int] = ..., epoch: _Optional[int] = ..., environments: _Optional[_Iterable[_Union[EnvironmentInfo, _Mapping]]] = ..., capacity: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "lease_s", "max_text_bytes", "sessions", "max_action_characters")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    MAX_TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_ACTION_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    lease_s: float
    max_text_bytes: int
    sessions: _containers.RepeatedScalarFieldContainer[int]
    max_action_characters: int
    def __init__(self, protocol: _Optional[int] = ..., lease_s: _Optional[float] = ..., max_text_bytes: _Optional[int] = ..., sessions: _Optional[_Iterable[int]] = ..., max_action_characters: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session", "environment", "task_json", "seed", "queue_s", "reset_s", "step_s", "episode_s", "traceparent", "seats", "tools")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    TASK_JSON_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    RESET_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    EPISODE_S_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    session: int
    environment: str
    task_json: str
    seed: int
    queue_s: float
    reset_s: float
    step_s: float
    episode_s: float
    traceparent: str
    seats: int
    tools: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[int] = ..., environment: _Optional[str] = ..., task_json: _Optional[str] = ..., seed: _Optional[int] = ..., queue_s: _Optional[float] = ..., reset_s: _Optional[float] = ..., step_s: _Optional[float] = ..., episode_s: _Optional[float] = ..., traceparent: _Optional[str] = ..., seats: _Optional[int] = ..., tools: _Optional[_Iterable[str]] = ...) -> None: ...

class Reset(_message.Message):
    __slots__ = ("session", "seq", "environment", "task_json", "seed", "deadline_s", "traceparent", "seats", "tools")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    TASK_JSON_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    session: int
    seq: int
    environment: str
    task_json: str
    seed: int
    deadline_s: float
    traceparent: str
    seats: int
    tools: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session: _Optional[int] = ..., seq: _Optional[int] = ..., environment: _Optional[str] = ..., task_json: _Optional[str] = ..., seed: _Optional[int] = ..., deadline_s: _Optional[float] = ..., traceparent: _Optional[str] = ..., seats: _Optional[int] = ..., tools: _Optional[_Iterable[str]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("session", "seq", "action", "deadline_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    session: int
    seq: int
    action: Action
    deadline_s: float
    def __init__(self, session: _Optional[int] = ..., seq: _Optional[int] = ..., action: _Optional[_Union[Action, _Mapping]] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("text", "tool_calls")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    text: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    def __init__(self, text: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments_json: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("session", "seq", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: int
    seq: int
    reason: str
    def __init__(self, session: _Optional[int] = ..., seq: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("session", "seq", "observation", "reward", "done", "ending", "message", "metrics", "queue_s", "host_s", "seat_rewards", "seat_metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ENDING_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    HOST_S_FIELD_NUMBER: _ClassVar[int]
    SEAT_REWARDS_FIELD_NUMBER: _ClassVar[int]
    SEAT_METRICS_FIELD_NUMBER: _ClassVar[int]
    session: int
    seq: int
    observation: Observation
    reward: float
    done: bool
    ending: _common_pb2.Ending
    message: str
    metrics: _containers.ScalarMap[str, float]
    queue_s: float
    host_s: float
    seat_rewards: _containers.RepeatedScalarFieldContainer[float]
    seat_metrics: _containers.RepeatedCompositeFieldContainer[SeatMetrics]
    def __init__(self, session: _Optional[int] = ..., seq: _Optional[int] = ..., observation: _Optional[_Union[Observation, _Mapping]] = ..., reward: _Optional[float] = ..., done: _Optional[bool] = ..., ending: _Optional[_Union[_common_pb2.Ending, str]] = ..., message: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ..., queue_s: _Optional[float] = ..., host_s: _Optional[float] = ..., seat_rewards: _Optional[_Iterable[float]] = ..., seat_metrics: _Optional[_Iterable[_Union[SeatMetrics, _Mapping]]] = ...) -> None: ...

class SeatMetrics(_message.Message):
    __slots__ = ("metrics",)
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    METRICS_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("text", "legal_actions", "tool_results", "role", "seat")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LEGAL_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESULTS_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    text: str
    legal_actions: _containers.RepeatedScalarFieldContainer[str]
    tool_results: _containers.RepeatedCompositeFieldContainer[ToolResult]
    role: str
    seat: int
    def __init__(self, text: _Optional[str] = ..., legal_actions: _Optional[_Iterable[str]] = ..., tool_results: _Optional[_Iterable[_Union[ToolResult, _Mapping]]] = ..., role: _Optional[str] = ..., seat: _Optional[int] = ...) -> None: ...

class ToolResult(_message.Message):
    __slots__ = ("id", "text", "is_error")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    text: str
    is_error: bool
    def __init__(self, id: _Optional[str] = ..., text: _Optional[str] = ..., is_error: _Optional[bool] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("session", "seq", "message")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    session: int
    seq: int
    message: str
    def __init__(self, session: _Optional[int] = ..., seq: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("capacity",)
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    capacity: int
    def __init__(self, capacity: _Optional[int] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("grace_s", "reason")
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    grace_s: float
    reason: str
    def __init__(self, grace_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class ListEnvironmentsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Latency(_message.Message):
    __slots__ = ("count", "p50_s", "p99_s", "counts", "longest_s")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    P50_S_FIELD_NUMBER: _ClassVar[int]
    P99_S_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_S_FIELD_NUMBER: _ClassVar[int]
    count: int
    p50_s: float
    p99_s: float
    counts: _containers.RepeatedScalarFieldContainer[int]
    longest_s: float
    def __init__(self, count: _Optional[int] = ..., p50_s: _Optional[float] = ..., p99_s: _Optional[float] = ..., counts: _Optional[_Iterable[int]] = ..., longest_s: _Optional[float] = ...) -> None: ...

class Faults(_message.Message):
    __slots__ = ("count", "last", "commonest", "commonest_count")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    COMMONEST_FIELD_NUMBER: _ClassVar[int]
    COMMONEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    last: str
    commonest: str
    commonest_count: int
    def __init__(self, count: _Optional[int] = ..., last: _Optional[str] = ..., commonest: _Optional[str] = ..., commonest_count: _Optional[int] = ...) -> None: ...

class ListEnvironmentsResponse(_message.Message):
    __slots__ = ("entries",)
    class Entry(_message.Message):
        __slots__ = ("environment", "hosts", "capacity", "open_sessions", "queued", "quarantined", "reset", "step", "faults", "quarantines", "available_hosts", "oldest_wait_s")
        ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
        HOSTS_FIELD_NUMBER: _ClassVar[int]
        CAPACITY_FIELD_NUMBER: _ClassVar[int]
        OPEN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
        QUEUED_FIELD_NUMBER: _ClassVar[int]
        QUARANTINED_FIELD_NUMBER: _ClassVar[int]
        RESET_FIELD_NUMBER: _ClassVar[int]
        STEP_FIELD_NUMBER: _ClassVar[int]
        FAULTS_FIELD_NUMBER: _ClassVar[int]
        QUARANTINES_FIELD_NUMBER: _ClassVar[int]
        AVAILABLE_HOSTS_FIELD_NUMBER: _ClassVar[int]
        OLDEST_WAIT_S_FIELD_NUMBER: _ClassVar[int]
        environment: EnvironmentInfo
        hosts: int
        capacity: int
        open_sessions: int
        queued: int
        quarantined: int
        reset: Latency
        step: Latency
        faults: Faults
        quarantines: _containers.RepeatedScalarFieldContainer[str]
        available_hosts: int
        oldest_wait_s: float
        def __init__(self, environment: _Optional[_Union[EnvironmentInfo, _Mapping]] = ..., hosts: _Optional[int] = ..., capacity: _Optional[int] = ..., open_sessions: _Optional[int] = ..., queued: _Optional[int] = ..., quarantined: _Optional[int] = ..., reset: _Optional[_Union[Latency, _Mapping]] = ..., step: _Optional[_Union[Latency, _Mapping]] = ..., faults: _Optional[_Union[Faults, _Mapping]] = ..., quarantines: _Optional[_Iterable[str]] = ..., available_hosts: _Optional[int] = ..., oldest_wait_s: _Optional[float] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ListEnvironmentsResponse.Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ListEnvironmentsResponse.Entry, _Mapping]]] = ...) -> None: ...

class ListHostsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListHostsResponse(_message.Message):
    __slots__ = ("hosts", "waits", "wait_p50_s", "wait_p99_s", "wait_longest_s", "totals", "refused")
    class TotalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RefusedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    WAIT_P50_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_P99_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_LONGEST_S_FIELD_NUMBER: _ClassVar[int]
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    hosts: _containers.RepeatedCompositeFieldContainer[HostStatus]
    waits: int
    wait_p50_s: float
    wait_p99_s: float
    wait_longest_s: float
    totals: _containers.ScalarMap[str, int]
    refused: _containers.ScalarMap[str, int]
    def __init__(self, hosts: _Optional[_Iterable[_Union[HostStatus, _Mapping]]] = ..., waits: _Optional[int] = ..., wait_p50_s: _Optional[float] = ..., wait_p99_s: _Optional[float] = ..., wait_longest_s: _Optional[float] = ..., totals: _Optional[_Mapping[str, int]] = ..., refused: _Optional[_Mapping[str, int]] = ...) -> None: ...

class HostStatus(_message.Message):
    __slots__ = ("host", "environments", "capacity", "open_sessions", "faults", "quarantined", "draining", "attached", "silent_s", "fault_texts", "quarantines", "on_probation")
    HOST_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    FAULT_TEXTS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINES_FIELD_NUMBER: _ClassVar[int]
    ON_PROBATION_FIELD_NUMBER: _ClassVar[int]
    host: str
    environments: _containers.RepeatedScalarFieldContainer[str]
    capacity: int
    open_sessions: int
    faults: int
    quarantined: _containers.RepeatedScalarFieldContainer[str]
    draining: bool
    attached: bool
    silent_s: float
    fault_texts: Faults
    quarantines: _containers.RepeatedCompositeFieldContainer[Quarantine]
    on_probation: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, host: _Optional[str] = ..., environments: _Optional[_Iterable[str]] = ..., capacity: _Optional[int] = ..., open_sessions: _Optional[int] = ..., faults: _Optional[int] = ..., quarantined: _Optional[_Iterable[str]] = ..., draining: _Optional[bool] = ..., attached: _Optional[bool] = ..., silent_s: _Optional[float] = ..., fault_texts: _Optional[_Union[Faults, _Mapping]] = ..., quarantines: _Optional[_Iterable[_Union[Quarantine, _Mapping]]] = ..., on_probation: _Optional[_Iterable[str]] = ...) -> None: ...

class Quarantine(_message.Message):
    __slots__ = ("environment", "left_s", "reason")
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    LEFT_S_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    environment: str
    left_s: float
    reason: str
    def __init__(self, environment: _Optional[str] = ..., left_s: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...
