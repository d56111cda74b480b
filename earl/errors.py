"""The one catalogue of errors, named by the boundary that was crossed.

Every error says what was wrong, with which value, and what to do about it. `status` is the gRPC
status code that `earl.rpc` sends it as, `exit_code` what a command ends with (docs/cli.md).
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar

from earl.visible import visible


class EarlError(Exception):
    """Base of all errors that EARL raises on purpose.

    message: what was wrong, with the value. remedy: what to do; may be empty. Either may quote foreign
    text: control characters are made visible.
    """

    status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1

    def __init_subclass__(cls, status: str = "", exit_code: int = 0, **options: Any) -> None:
        """A derived class has its base's status and exit code unless it names its own."""
        super().__init_subclass__(**options)
        if status:
            cls.status = status
        if exit_code:
            cls.exit_code = exit_code

    def __init__(self, message: str, remedy: str = "") -> None:
        self.message = visible(message)
        self.remedy = visible(remedy)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


# --- run files and arguments ----------------------------------------------------------------


class ConfigError(EarlError, status="INVALID_ARGUMENT", exit_code=2):
    """A run file, an override or an argument is wrong; nothing was started."""


class ModelNotFound(ConfigError, exit_code=3):
    """The model directory is missing, or lacks a file or a key that it must have."""


class UnsupportedModel(ConfigError):
    """The checkpoint is of a family or has a feature that EARL's decoders do not have."""


class IllegalParallelism(ConfigError, exit_code=4):
    """The model does not allow this parallelism, for example a head count that tp does not divide."""


class EngineNotInstalled(ConfigError):
    """The environment that an engine is installed in is not there."""


class PortInUse(EarlError, status="UNAVAILABLE", exit_code=5):
    """An address that a service should listen on is taken."""


class InsecureBind(ConfigError, exit_code=6):
    """A bind off loopback without TLS and token."""


class InsecureCall(ConfigError, exit_code=InsecureBind.exit_code):
    """A token that would be sent off loopback without TLS; nothing was sent."""


# --- the bus and the ledger -----------------------------------------------------------------


class BusUnavailable(EarlError, status="UNAVAILABLE", exit_code=7):
    """Redis or Valkey cannot be reached, refused the password, or failed."""


class LedgerError(EarlError, status="FAILED_PRECONDITION"):
    """A command that the ledger refuses; it changed nothing."""


class LedgerFenced(LedgerError):
    """Another scheduler changed the ledger: this one must stop."""


class UnknownWorker(LedgerError, status="NOT_FOUND"):
    """The worker never joined, or a newer incarnation of it did."""


class WorkerReplaced(LedgerError, status="ABORTED", exit_code=16):
    """A newer process took part under this worker's name: this one has no place in the run any more."""


class StaleEpoch(LedgerError):
    """A command or report of an older switch."""


# --- the data plane -------------------------------------------------------------------------


class DataPlaneError(EarlError, status="UNAVAILABLE"):
    """Base of what can go wrong between arenas and readers."""


class ReplayLost(DataPlaneError):
    """A file of a trained sequence's columns is missing, damaged, or of another sequence.

    tickets: the replays that cannot be trained for it.
    """

    def __init__(self, message: str, remedy: str = "", tickets: tuple[int, ...] = ()) -> None:
        super().__init__(message, remedy)
        self.tickets = tickets


class LayoutError(DataPlaneError, status="INVALID_ARGUMENT"):
    """A layout that is no partition of its tensor."""


class LayoutGap(LayoutError):
    """No shard holds a box that the target needs; the message names the box."""


class LayoutOverlap(LayoutError):
    """Two shards of one target claim the same elements; the message names the box."""


class RegistryUnavailable(BusUnavailable, DataPlaneError):
    """The registry of descriptors cannot be reached: nothing can be read until it can."""


class ArenaFull(DataPlaneError, status="RESOURCE_EXHAUSTED"):
    """The arena has no free space for a region now: back-pressure, not a failure."""


class RegionGone(DataPlaneError, status="NOT_FOUND"):
    """The region was freed or reused before or while it was read."""


class VersionGone(DataPlaneError, status="NOT_FOUND"):
    """The weights' slot was reused: take the newer version."""


class DescriptorMissing(DataPlaneError, status="NOT_FOUND"):
    """The registry has no descriptor under this key: never published, or its lease ended."""


class KeyTaken(DataPlaneError, status="ALREADY_EXISTS"):
    """Another owner has published under this key, and its lease lives."""


class PeerLost(DataPlaneError):
    """The owner of the memory died or cannot be reached."""


class PeerUnreachable(PeerLost):
    """The owner's serving process did not answer for 2 s: it is frozen, or the network to it is cut off."""


class ReadTimeout(DataPlaneError, status="DEADLINE_EXCEEDED"):
    """A read did not end before its deadline."""


class ChecksumMismatch(DataPlaneError, status="DATA_LOSS"):
    """The bytes that arrived are not those that were published."""


class ChangesUnusable(DataPlaneError, status="FAILED_PRECONDITION"):
    """The published changes of a version do not turn what a reader holds into that version."""


class TransportUnavailable(DataPlaneError, status="FAILED_PRECONDITION", exit_code=8):
    """No transport reaches the owner under the configured requirements."""


# --- engines and training -------------------------------------------------------------------


class EngineError(EarlError):
    """An engine cannot do what a request or a command requires."""


class EngineLost(EngineError, status="UNAVAILABLE", exit_code=14):
    """The engine's processes died or were stopped with calls waiting."""


class EngineOutOfMemory(EngineLost, exit_code=17):
    """A process of the engine needed more memory than its device has, or than it may take."""


class EngineBusy(EngineError, status="RESOURCE_EXHAUSTED"):
    """The engine's queue is full: back-pressure, not a failure."""


class ReshapeRefused(EngineError, status="FAILED_PRECONDITION"):
    """The engine cannot change its parallelism while it runs, or not to this one."""


class ContextTooLong(EngineError, status="OUT_OF_RANGE"):
    """The sequence does not fit the engine's context bound."""


class WeightsIncomplete(EngineError, status="FAILED_PRECONDITION"):
    """A load failed part way: the engine refuses to generate until one version is wholly loaded."""


class TrainerError(EarlError):
    """A training step cannot be done, for example because its loss is not finite."""


class FragmentError(EarlError, status="FAILED_PRECONDITION", exit_code=26):
    """A fragment of an algorithm failed, or returned what cannot be used."""


class CheckpointError(EarlError, status="FAILED_PRECONDITION", exit_code=9):
    """A checkpoint is missing, incomplete or belongs to another model."""


# --- environments ---------------------------------------------------------------------------


class EnvironmentFailure(EarlError, status="ABORTED"):
    """Base of what can go wrong between a session and its environment."""


class EnvProtocolError(EnvironmentFailure, status="INVALID_ARGUMENT", exit_code=10):
    """A message that breaks the environment stream's rules; it was refused and counted."""


class DuplicateEnvironment(EnvProtocolError, status="ALREADY_EXISTS"):
    """An environment's name is already taken on this host or with another schema."""


class EpisodesFailing(EnvironmentFailure, exit_code=15):
    """Too many episodes in a row failed: the run ends with the reason instead of trying forever."""


class UnknownEnvironment(EnvironmentFailure, status="NOT_FOUND", exit_code=24):
    """No attached host serves an environment of this name."""


class EnvironmentCrashed(EnvironmentFailure):
    """The process that an environment ran in died: the episode ended as ENV_ERROR, the host continues."""


class ToolError(EnvironmentFailure, status="INVALID_ARGUMENT"):
    """A tool cannot do what the agent requested; the agent gets the message, the episode continues."""


class SandboxUnavailable(ConfigError):
    """This machine does not permit what would confine agent-written code, so none of it is run."""


class EnvHostLost(EnvironmentFailure, status="UNAVAILABLE"):
    """The env host died, froze or left with the session open: INFRA_ERROR, never a reward."""


class EnvBackendLost(EnvHostLost):
    """The server or process that an environment depends on is gone: INFRA_ERROR as well."""


class DiskFull(EarlError, status="RESOURCE_EXHAUSTED", exit_code=25):
    """A disk is full. Of a run, what had been acknowledged is kept."""


class HistoryViolated(EarlError, status="DATA_LOSS", exit_code=28):
    """A run's history has an event that breaks a promise, such as a ticket that is trained twice."""


class HistoryIncomplete(EarlError, status="DATA_LOSS", exit_code=29):
    """Parts of a run's history are missing: what is there breaks no promise."""


def file_error(error: OSError) -> EarlError | None:
    """Returns the error to raise for an unusable file; None if neither space nor permission is the reason."""
    path = error.filename2 or error.filename
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f"{path} cannot be written: " if path else ""
        return DiskFull(f"{where}the disk is full", "free some space, or choose another folder")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        reason = (error.strerror or "not permitted").lower()
        return ConfigError(
            f"{path or 'a file'} cannot be used: {reason}", "choose a folder in which you may write"
        )
    return None


# --- memory ---------------------------------------------------------------------------------


class OutOfMemory(EarlError, status="RESOURCE_EXHAUSTED", exit_code=EngineOutOfMemory.exit_code):
    """A process needed more memory than its device has, or than it may take."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Returns whether the error means too little memory, of Python, the system or torch's allocators."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    message = str(error)
    return isinstance(error, RuntimeError) and any(
        words in message
        for words in (
            "out of memory",
            "not enough memory",
            "can't allocate memory",
            "bad_alloc",
            # cuBLAS and cuDNN have workspaces besides torch's memory.
            "STATUS_ALLOC_FAILED",
        )
    )


# --- RPC and processes ----------------------------------------------------------------------


class RpcError(EarlError, status="UNKNOWN"):
    """A call failed for a reason that is not in this catalogue."""


class Unauthenticated(RpcError, status="UNAUTHENTICATED", exit_code=18):
    """The token is missing, wrong, expired or revoked."""


class MalformedRequest(RpcError, status="INVALID_ARGUMENT"):
    """The bytes of a call are no message of its contract, or hold text that is no UTF-8."""


class PermissionDenied(RpcError, status="PERMISSION_DENIED", exit_code=19):
    """The token is of a role that may not do this."""


class ServiceUnavailable(RpcError, status="UNAVAILABLE", exit_code=11):
    """The service cannot be reached, after the retries that were allowed."""


class DeadlineExceeded(RpcError, status="DEADLINE_EXCEEDED", exit_code=12):
    """A call got no answer before its deadline."""


class UnusableReply(RpcError, status="DATA_LOSS", exit_code=27):
    """A server of another project refused a request, or answered with what is no answer to it."""


class ProcessFailed(EarlError, exit_code=13):
    """A process of the local stack ended when it should not have."""
