"""How far a run is and what processor time its processes used for it, by kind, looked at from outside.

A look is taken only where the number of finished training steps has just changed, so that tokens and
processor time belong to the same steps. Linux (it reads /proc).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from earl.errors import MeasurementWrong
from earl.obs.tail import Tail

# By the beginning of the module that a process runs, or of its program's name; the first that fits. What has
# another one is of its parent's kind.
KINDS = (
    ("services.scheduler", "scheduler"),
    ("services.env_gateway", "gateway"),
    ("services.rollout.engines", "engine"),
    ("services.rollout", "rollout"),
    ("services.trainer.reference", "reference"),
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
class Look:
    """A run when so many training steps had ended, the last one just now.

    tokens: of all training steps so far. at_s: on a clock that all runs share. cpu_s: seconds of processor
    time so far, by kind of process.
    """

    steps: int
    tokens: float
    at_s: float
    cpu_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Used:
    """What a run did and used between two looks."""

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


def between(looks: Mapping[str, Sequence[Look]]) -> dict[str, Used]:
    """Of each run, from its first to its last look in the time in which all were between two training steps:
    from the latest of their first looks to the earliest of their last.

    A run's last look is none of them: processes may have ended by then. Raises MeasurementWrong for a run
    that has no step in that time.
    """
    kept = {run: list(seen[:-1]) for run, seen in looks.items()}
    if all(kept.values()):
        begin_s = max(seen[0].at_s for seen in kept.values())
        end_s = min(seen[-1].at_s for seen in kept.values())
        kept = {run: [look for look in seen if begin_s <= look.at_s <= end_s] for run, seen in kept.items()}
    for run, seen in kept.items():
        if len(seen) < 2:
            raise MeasurementWrong(
                f"{run}: of {len(looks[run])} looks at its training steps none were two while the other run "
                "trained, too",
                "give more --steps",
            )
    return {run: used(seen[0], seen[-1]) for run, seen in kept.items()}


def used(first: Look, last: Look) -> Used:
    return Used(
        last.steps - first.steps,
        last.tokens - first.tokens,
        last.at_s - first.at_s,
        {kind: seconds - first.cpu_s.get(kind, 0.0) for kind, seconds in last.cpu_s.items()},
    )


class Usage:
    """Of the run in `directory`: these processes and all below them, which may begin and end meanwhile."""

    def __init__(self, directory: Path, roots: Collection[int]) -> None:
        self._tail = Tail(directory / "metrics.jsonl")
        self._roots = set(roots)
        self._steps = 0
        self._tokens = 0.0
        # By (pid, when it began): its kind, and the seconds that it was last seen to have used.
        self._seen: dict[tuple[int, int], tuple[str, float]] = {}
        self.looks: list[Look] = []

    def look(self) -> bool:
        """Whether a training step has ended since the last call; then what was used is looked at."""
        ended = [one["tokens"] for one in self._tail.read() if one.get("phase") == "train"]
        if not ended:
            return False
        self._steps += len(ended)
        self._tokens += sum(ended)
        at_s, cpu_s = time.monotonic(), self.cpu_s()
        self.looks.append(Look(self._steps, self._tokens, at_s, cpu_s))
        return True

    def cpu_s(self) -> dict[str, float]:
        """Seconds so far by kind; of what has ended, what it was last seen to have used."""
        living = dict(_processes())
        below: dict[int, list[int]] = {}
        for pid, (parent, _, _) in living.items():
            below.setdefault(parent, []).append(pid)
        waiting = [(pid, OTHER) for pid in self._roots if pid in living]
        while waiting:
            pid, above = waiting.pop()
            _, began, seconds = living[pid]
            known = self._seen.get((pid, began))
            # One that was forked and has not begun its own program yet looks like its parent.
            kind = known[0] if known and known[0] != above else kind_of(_command(pid), above)
            self._seen[pid, began] = (kind, seconds)
            waiting += [(child, kind) for child in below.get(pid, ())]
        total: dict[str, float] = {}
        for kind, seconds in self._seen.values():
            total[kind] = total.get(kind, 0.0) + seconds
        return total


def kind_of(command: Sequence[str], above: str) -> str:
    """What a process is one of, by its command line. above: its parent's kind."""
    if not command:
        return above
    module = command.index("-m") + 1 if "-m" in command[:-1] else 0
    # A program may write its own title, all of it one argument.
    named = command[module] if module else command[0].split(" ")[0].rpartition("/")[2]
    return next((kind for beginning, kind in KINDS if named.startswith(beginning)), above)


def _processes() -> Iterator[tuple[int, tuple[int, int, float]]]:
    """pid: (parent, when it began in clock ticks, seconds of processor time) of all that live."""
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
