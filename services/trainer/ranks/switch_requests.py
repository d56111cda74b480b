"""Switches that were asked for: the newest waits for a boundary, one runs, what became of the last is kept.

    RPC ─ ask ─► waiting ─ begin: the loop, at a boundary ─► running ─ end ─► whoever asked
                    └─ withdraw: too late; a newer one came; the stage leaves ─► rolled back

Promise: an epoch is carried out at most once, and whoever asks for it again gets the same outcome; what is
older is refused, whatever became of it.
"""

from __future__ import annotations

import concurrent.futures
import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from earl.errors import ConfigError, StaleEpoch
from earl.parallelism import Parallelism


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds of each stage. Preparing includes the wait for the boundary. Raises ConfigError."""

    prepare_s: float
    quiesce_s: float
    switch_s: float
    verify_s: float

    def __post_init__(self) -> None:
        for name, seconds in asdict(self).items():
            if not (math.isfinite(seconds) and seconds > 0):
                raise ConfigError(f"{name} = {seconds}", "give every stage of a switch more than 0 seconds")

    @property
    def begun_s(self) -> float:
        """Of all that follows the boundary; moving and verifying may happen twice, for the way back."""
        return self.prepare_s + self.quiesce_s + 2 * (self.switch_s + self.verify_s)


@dataclass(frozen=True, slots=True)
class Command:
    """What was asked for, and when by time.monotonic(). tolerance: of canaries' log-probs; not NaN."""

    epoch: int
    parallelism: Parallelism
    deadlines: Deadlines
    tolerance: float
    reason: str = ""
    asked_s: float = field(default_factory=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        if math.isnan(self.tolerance):
            raise ConfigError("logprob_tolerance is not a number", "give the largest difference allowed")

    def encode(self) -> bytes:
        """For the other ranks, who have clocks of their own: asked_s becomes how long ago that was."""
        return json.dumps(asdict(self) | {"asked_s": time.monotonic() - self.asked_s}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Command:
        value = json.loads(data)
        value["parallelism"] = Parallelism(**value["parallelism"])
        value["deadlines"] = Deadlines(**value["deadlines"])
        value["asked_s"] = time.monotonic() - value["asked_s"]
        return cls(**value)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. parallelism: as the stage is cut now. message: why it was rolled back.

    stall_s: between the boundary and going on; seconds: from the command on. moved_bytes: over the wire, of
    all ranks; peak_extra_bytes: of the rank that needed most beside the larger of both cuts.
    """

    epoch: int
    parallelism: Parallelism
    message: str = ""
    stall_s: float = 0.0
    seconds: float = 0.0
    moved_bytes: int = 0
    peak_extra_bytes: int = 0
    max_logprob_difference: float = 0.0

    @property
    def rolled_back(self) -> bool:
        return bool(self.message)


@dataclass(frozen=True, slots=True)
class _Asked:
    command: Command
    outcome: concurrent.futures.Future[Outcome] = field(default_factory=concurrent.futures.Future)


class Epochs:
    """Of one stage's group of ranks, on the rank that speaks for it; from any thread.

    parallelism: as the group is cut; epoch: of the switch that cut it so, 0 as it started. legal: raises
    IllegalParallelism for what the group cannot become.
    """

    def __init__(self, parallelism: Parallelism, legal: Callable[[Parallelism], None]) -> None:
        self.parallelism = parallelism
        self.epoch = 0
        self._legal = legal
        self._lock = threading.Lock()
        self._waiting: _Asked | None = None
        self._running: _Asked | None = None
        self._newest: _Asked | None = None

    def ask(self, command: Command) -> concurrent.futures.Future[Outcome]:
        """Its outcome, or that of the same command before. Raises StaleEpoch, IllegalParallelism."""
        with self._lock:
            newest = self._newest.command if self._newest is not None else None
            if self._newest is not None and newest is not None and command.epoch == newest.epoch:
                if command.parallelism != newest.parallelism:
                    raise StaleEpoch(
                        f"epoch {command.epoch} was of {newest.parallelism}, not of {command.parallelism}",
                        "give every switch an epoch of its own",
                    )
                return self._newest.outcome
            last = newest.epoch if newest is not None else 0
            if command.epoch <= last:
                raise StaleEpoch(
                    f"epoch {command.epoch}: epoch {last} was commanded already",
                    "ask for the stage's parallelism anew",
                )
            self._legal(command.parallelism)
            if self._waiting is not None:
                self._withdraw(f"epoch {command.epoch} came before there was a boundary")
            self._waiting = self._newest = _Asked(command)
            return self._waiting.outcome

    @property
    def wanted(self) -> bool:
        """Whether a command waits for a boundary."""
        return self._waiting is not None

    def begin(self) -> Command | None:
        """The command that waits is carried out now."""
        with self._lock:
            self._running, self._waiting = self._waiting, None
            return self._running.command if self._running is not None else None

    def end(self, outcome: Outcome) -> None:
        """What became of the command that was begun."""
        with self._lock:
            assert self._running is not None
            if not outcome.rolled_back:
                self.parallelism, self.epoch = outcome.parallelism, outcome.epoch
            self._running.outcome.set_result(outcome)
            self._running = None

    def withdraw(self, epoch: int, why: str) -> bool:
        """Whether the command had not begun: it never will."""
        with self._lock:
            if self._waiting is None or self._waiting.command.epoch != epoch:
                return False
            self._withdraw(why)
            return True

    def close(self, why: str) -> None:
        """No boundary comes any more."""
        with self._lock:
            if self._waiting is not None:
                self._withdraw(why)

    def _withdraw(self, why: str) -> None:
        assert self._waiting is not None
        asked, self._waiting = self._waiting, None
        command = asked.command
        waited_s = time.monotonic() - command.asked_s
        asked.outcome.set_result(Outcome(command.epoch, self.parallelism, why, seconds=waited_s))
