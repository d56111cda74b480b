"""A run's progress and the processor time of its processes, by kind, observed from outside.

A sample is taken only where the number of finished training steps has just changed, so that tokens and
processor time belong to the same steps. Linux (it reads /proc).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.children import MeasurementWrong
from earl.obs.tail import Tail

# By the beginning of the module that a process runs, or of its program's name; the first that fits. Any other
# process is of its parent's kind.
KINDS = (
    ("services.scheduler", "scheduler"),
    ("services.env_gateway", "gateway"),
    ("services.rollout.engines", "engine"),
    ("services.rollout", "rollout"),
    ("services.trainer.reference", "reference"),
    ("services.trainer.teacher", "teacher"),
    ("services.trainer", "trainer"),
    ("earl.env", "env"),
    ("earl.stack.valkey", "valkey"),
    ("valkey-server", "valkey"),
    ("earl.dashboard", "dashboard"),
    ("earl.stack.sink", "sink"),
    ("earl.stack.warden", "launcher"),
    ("earl.cli", "launcher"),
    ("benchmarks.collector", "collector"),
)
OTHER = "other"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class UsageSample:
    """A run at the end of training step `steps`.

    tokens: all that were trained on so far. at_s: time on a clock that all runs share. cpu_s: seconds of
    processor time so far, by kind of process.
    """

    steps: int
    tokens: float
    at_s: float
    cpu_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Used:
    """The work of a run between two samples, and what it used."""

    steps: int
    tokens: float
    seconds: float
    cpu_s: Mapping[str, float]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def cpu_us_by_kind(self) -> dict[str, float]:
        """Microseconds a token."""
        return {kind: seconds / self.tokens * 1e6 for kind, seconds in self.cpu_s.items()}

    @property
    def cpu_us_per_token(self) -> float:
        return sum(self.cpu_us_by_kind.values())


def between(samples_of: Mapping[str, Sequence[UsageSample]]) -> dict[str, Used]:
    """Returns what each run used while all of them trained: from the latest of their first samples to the
    earliest of their last.

    A run's last sample is left out, because processes may have ended by then. Raises MeasurementWrong for
    a run that has no step in that time.
    """
    kept = {run: list(taken[:-1]) for run, taken in samples_of.items()}
    if all(kept.values()):
        begin_s = max(taken[0].at_s for taken in kept.values())
        end_s = min(taken[-1].at_s for taken in kept.values())
        kept = {
            run: [sample for sample in taken if begin_s <= sample.at_s <= end_s]
            for run, taken in kept.items()
        }
    for run, taken in kept.items():
        if len(taken) < 2:
            raise MeasurementWrong(
                f"{run}: fewer than two of {len(samples_of[run])} samples at training steps were taken while "
                "the other run trained, too",
                "give more --steps",
            )
    return {run: used(taken[0], taken[-1]) for run, taken in kept.items()}


def used(first: UsageSample, last: UsageSample) -> Used:
    return Used(
        last.steps - first.steps,
        last.tokens - first.tokens,
        last.at_s - first.at_s,
        {kind: seconds - first.cpu_s.get(kind, 0.0) for kind, seconds in last.cpu_s.items()},
    )


class Usage:
    """Samples the run in `directory`: the processes `roots` and all below them, which may start and end."""

    def __init__(self, directory: Path, roots: Collection[int]) -> None:
        self._tail = Tail(directory / "metrics.jsonl")
        self._roots = set(roots)
        self._steps = 0
        self._tokens = 0.0
        # By (pid, start time): its kind, and the seconds that it had used at the last sample.
        self._used: dict[tuple[int, int], tuple[str, float]] = {}
        self.samples: list[UsageSample] = []

    def sample(self) -> bool:
        """Takes a sample if a training step has ended since the last call; returns whether it did."""
        ended = [step["tokens"] for step in self._tail.read() if step.get("phase") == "train"]
        if not ended:
            return False
        self._steps += len(ended)
        self._tokens += sum(ended)
        at_s, cpu_s = time.monotonic(), self.cpu_s()
        self.samples.append(UsageSample(self._steps, self._tokens, at_s, cpu_s))
        return True

    def cpu_s(self) -> dict[str, float]:
        """Seconds so far by kind; for a process that has ended, its seconds at the last sample."""
        living = dict(_processes())
        below: dict[int, list[int]] = {}
        for pid, (parent, _, _) in living.items():
            below.setdefault(parent, []).append(pid)
        waiting = [(pid, OTHER) for pid in self._roots if pid in living]
        while waiting:
            pid, above = waiting.pop()
            _, began, seconds = living[pid]
            known = self._used.get((pid, began))
            # A process that was forked and has not started its own program yet looks like its parent.
            kind = known[0] if known and known[0] != above else kind_of(_command(pid), above)
            self._used[pid, began] = (kind, seconds)
            waiting += [(child, kind) for child in below.get(pid, ())]
        total: dict[str, float] = {}
        for kind, seconds in self._used.values():
            total[kind] = total.get(kind, 0.0) + seconds
        return total


def kind_of(command: Sequence[str], above: str) -> str:
    """The kind of a process by its command line. above: its parent's kind."""
    if not command:
        return above
    module = command.index("-m") + 1 if "-m" in command[:-1] else 0
    # A program may write its own title, all of it one argument.
    named = command[module] if module else command[0].split(" ")[0].rpartition("/")[2]
    return next((kind for beginning, kind in KINDS if named.startswith(beginning)), above)


def _processes() -> Iterator[tuple[int, tuple[int, int, float]]]:
    """(pid, (parent, start time in clock ticks, seconds of processor time)) of every process."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                seconds = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
                yield int(name), (int(fields[1]), int(fields[19]), seconds)


def _command(pid: int) -> list[str]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    return []
