"""The one catalogue of errors, named by the boundary that was crossed.

Every error says what was wrong, with which value, and what to do about it. `status` is the gRPC
status code that `earl.rpc` sends it as, `exit_code` what a command ends with (docs/cli.md).
"""

from __future__ import annotations

import errno
from typing import ClassVar

from earl.visible import visible


class EarlError(Exception):
    """Base of all errors that EARL raises on purpose.

    message: what was wrong, with the value. remedy: what to do; may be empty. Either may quote foreign
    text: control characters are made visible.
    """

    status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message = visible(message)
        self.remedy = visible(remedy)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


# --- what the person gave -------------------------------------------------------------------


class ConfigError(EarlError):
    """A run file, an override or an argument is wrong; nothing was started."""

    status = "INVALID_ARGUMENT"
    exit_code = 2


class ModelNotFound(ConfigError):
    """The model directory is missing, or lacks a file or a key that it must have."""

    exit_code = 3


class UnsupportedModel(ConfigError):
    """The checkpoint is of a family or has a feature that EARL's decoders do not have."""


class IllegalParallelism(ConfigError):
    """The model does not allow this parallelism, for example a head count that tp does not divide."""

    exit_code = 4


class EngineNotInstalled(ConfigError):
    """The environment that an engine is installed in is not there."""


class PortInUse(EarlError):
    """An address that a service should listen on is taken."""

    status = "UNAVAILABLE"
    exit_code = 5


class InsecureBind(ConfigError):
    """A bind off loopback without TLS and token."""

    exit_code = 6


class InsecureCall(ConfigError):
    """A token that would be sent off loopback without TLS; nothing was sent."""

    exit_code = InsecureBind.exit_code


# --- the bus and the ledger -----------------------------------------------------------------


class BusUnavailable(EarlError):
    """Redis or Valkey cannot be reached, refused the password, or failed."""

    status = "UNAVAILABLE"
    exit_code = 7


class LedgerError(EarlError):
    """A command that the ledger refuses; it changed nothing."""

    status = "FAILED_PRECONDITION"


class LedgerFenced(LedgerError):
    """Another scheduler changed the ledger: this one must stop."""


class UnknownWorker(LedgerError):
    """The worker never joined, or a newer incarnation of it did."""

    status = "NOT_FOUND"


class WorkerReplaced(LedgerError):
    """A newer process took part under this worker's name: this one has no place in the run any more."""

    status = "ABORTED"
    exit_code = 16


class StaleEpoch(LedgerError):
    """A command or report of an older switch."""


# --- the data plane -------------------------------------------------------------------------


class DataPlaneError(EarlError):
    """Base of what can go wrong between arenas and readers."""

    status = "UNAVAILABLE"


class LayoutError(DataPlaneError):
    """A layout that is no partition of its tensor."""

    status = "INVALID_ARGUMENT"


class LayoutGap(LayoutError):
    """No shard holds a box that the target needs; the message names the box."""


class LayoutOverlap(LayoutError):
    """Two shards of one target claim the same elements; the message names the box."""


class ArenaFull(DataPlaneError):
    """No room for a region now: back-pressure, not a failure."""

    status = "RESOURCE_EXHAUSTED"


class RegionGone(DataPlaneError):
    """The region was freed or reused before or while it was read."""

    status = "NOT_FOUND"


class VersionGone(DataPlaneError):
    """The weights' slot was reused: take the newer version."""

    status = "NOT_FOUND"


class DescriptorMissing(DataPlaneError):
    """The registry has no descriptor under this key: never published, or its lease ended."""

    status = "NOT_FOUND"


class PeerLost(DataPlaneError):
    """The owner of the memory died or cannot be reached."""


class ReadTimeout(DataPlaneError):
    """A read did not end before its deadline."""

    status = "DEADLINE_EXCEEDED"


class ChecksumMismatch(DataPlaneError):
    """The bytes that arrived are not those that were published."""

    status = "DATA_LOSS"


class TransportUnavailable(DataPlaneError):
    """No transport reaches the owner under the configured requirements."""

    status = "FAILED_PRECONDITION"
    exit_code = 8


# --- engines and training -------------------------------------------------------------------


class EngineError(EarlError):
    """An engine cannot do what was asked of it."""


class EngineLost(EngineError):
    """The engine's processes died or were stopped with calls waiting."""

    status = "UNAVAILABLE"
    exit_code = 14


class EngineOutOfMemory(EngineLost):
    """A process of the engine needed more memory than its device has, or than it may take."""

    exit_code = 17


class EngineBusy(EngineError):
    """The engine's queue is full: back-pressure, not a failure."""

    status = "RESOURCE_EXHAUSTED"


class ReshapeRefused(EngineError):
    """The engine cannot change its parallelism while it runs, or not to this one."""

    status = "FAILED_PRECONDITION"


class ContextTooLong(EngineError):
    """The sequence does not fit the engine's context bound."""

    status = "OUT_OF_RANGE"


class WeightsIncomplete(EngineError):
    """A load failed part way: the engine refuses to generate until one version is wholly loaded."""

    status = "FAILED_PRECONDITION"


class TrainerError(EarlError):
    """A training step cannot be done, for example because its loss is not finite."""


class CheckpointError(EarlError):
    """A checkpoint is missing, incomplete or belongs to another model."""

    status = "FAILED_PRECONDITION"
    exit_code = 9


# --- environments ---------------------------------------------------------------------------


class EnvironmentFailure(EarlError):
    """Base of what can go wrong between a session and its environment."""

    status = "ABORTED"


class EnvProtocolError(EnvironmentFailure):
    """A message that breaks the environment stream's rules; it was refused and counted."""

    status = "INVALID_ARGUMENT"
    exit_code = 10


class DuplicateEnvironment(EnvProtocolError):
    """An environment's name is already taken on this host or with another schema."""

    status = "ALREADY_EXISTS"


class EpisodesFailing(EnvironmentFailure):
    """Episode after episode came to nothing: the run ends and says why, instead of trying for ever."""

    exit_code = 15


class UnknownEnvironment(EnvironmentFailure):
    """No attached host serves an environment of this name."""

    status = "NOT_FOUND"


class EnvironmentCrashed(EnvironmentFailure):
    """The process that an environment ran in died: the episode ended as ENV_ERROR, the host continues."""


class ToolError(EnvironmentFailure):
    """A tool cannot do what the agent asked; the agent is shown the message, the episode continues."""

    status = "INVALID_ARGUMENT"


class SandboxUnavailable(ConfigError):
    """This machine does not permit what would confine agent-written code, so none of it is run."""


class EnvHostLost(EnvironmentFailure):
    """The env host died, froze or left with the session open: INFRA_ERROR, never a reward."""

    status = "UNAVAILABLE"


class EnvBackendLost(EnvHostLost):
    """What an environment stands on, a server or a process of its own, is gone: INFRA_ERROR as well."""


# --- memory ---------------------------------------------------------------------------------


class OutOfMemory(EarlError):
    """A process needed more memory than its device has, or than it may take."""

    status = "RESOURCE_EXHAUSTED"
    exit_code = EngineOutOfMemory.exit_code


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether the error says so: Python's, the system's, or that of torch's allocators."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    message = str(error)
    return isinstance(error, RuntimeError) and any(
        words in message
        for words in ("out of memory", "not enough memory", "can't allocate memory", "bad_alloc")
    )


# --- benchmarks -----------------------------------------------------------------------------


class MeasurementWrong(EarlError):
    """A benchmark did not do what it measures, so none of its figures is written."""


# --- RPC and processes ----------------------------------------------------------------------


class RpcError(EarlError):
    """A call failed for a reason that is not in this catalogue."""

    status = "UNKNOWN"


class Unauthenticated(RpcError):
    """The token is missing, wrong, expired or revoked."""

    status = "UNAUTHENTICATED"
    exit_code = 18


class MalformedRequest(RpcError):
    """The bytes of a call are no message of its contract, or hold text that is no UTF-8."""

    status = "INVALID_ARGUMENT"


class PermissionDenied(RpcError):
    """The token is of a role that may not do this."""

    status = "PERMISSION_DENIED"
    exit_code = 19


class ServiceUnavailable(RpcError):
    """The service cannot be reached, after the retries that were allowed."""

    status = "UNAVAILABLE"
    exit_code = 11


class DeadlineExceeded(RpcError):
    """No answer before the deadline."""

    status = "DEADLINE_EXCEEDED"
    exit_code = 12


class ProcessFailed(EarlError):
    """A process of the local stack ended when it should not have."""

    exit_code = 13
