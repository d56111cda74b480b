"""The requests of `earl profile` to a stage, and the answers: JSON lines over a probe's stdin and stdout.

    --job FILE ─► ready        visit ─► sample        visit ─► sample …        end of input ─► it ends

A probe is one process, which may start others. It measures one stage in one parallelism; what it starts for
it serves all of the job's points. It ends with OutOfMemory's exit code when a point does not fit.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from earl.obs.machine import computes_on_gpu
from earl.obs.memory import host_bytes

_T = TypeVar("_T", bound="ProfileJob | Visit | ProfileSample")


@dataclass(frozen=True, slots=True)
class ProfileJob:
    """A request to profile a stage in one parallelism.

    run: a RunConfig as JSON text. model: a checkpoint directory.

    points: (context in tokens, concurrency of the whole pool) of all that may be visited.
    """

    stage: str
    run: str
    model: str
    dp: int
    tp: int
    points: tuple[tuple[int, int], ...]
    cp: int = 1


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to measure once at a point for about `seconds`, preparation not counted."""

    context_tokens: int
    concurrency: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ProfileSample:
    """Speed and memory at one point. peak_memory_fraction: of the devices' memory, at the point; None where
    it is not known.
    """

    tokens_per_device_s: float
    peak_memory_fraction: float | None = None


def encode(message: ProfileJob | Visit | ProfileSample) -> str:
    return json.dumps(asdict(message)) + "\n"


def decode(kind: type[_T], line: str | bytes) -> _T:
    values: dict[str, Any] = json.loads(line)
    if kind is ProfileJob:
        values["points"] = tuple((int(length), int(sequences)) for length, sequences in values["points"])
    return kind(**values)


# --- in a probe -----------------------------------------------------------------------------


def read_job(arguments: list[str]) -> ProfileJob:
    """The job that a probe's command line names, `--job FILE`."""
    return decode(ProfileJob, Path(arguments[arguments.index("--job") + 1]).read_bytes())


def answers() -> IO[str]:
    """Standard output, for answers alone: from now on all other output goes to standard error."""
    ours = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return ours


def bound_memory(device: str, ranks: int) -> None:
    """Limits the private memory of this process, and of each that it starts, to its part of the host's.

    Only if they compute on the host. What does not fit then fails, instead of making the host kill a process
    of its choice. device: as in the run file, "auto", "cpu" or "cuda".
    """
    if computes_on_gpu(device):
        return
    most = host_bytes() // ranks
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
