"""The input of a policy, and its decision. Pure values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from earl.parallelism import Replica
from services.scheduler.profile.table import Prediction


class LayoutChoice(Protocol):
    """A layout that can be chosen: a stage's Parallelism, or one for each stage that shares devices."""

    @property
    def replica(self) -> Replica: ...

    @property
    def devices(self) -> int: ...

    def over(self, devices: int) -> Any:
        """The same replicas over so many devices; None if they do not divide them."""
        ...

    def as_dict(self) -> Mapping[str, Any]: ...


class Outlook(Protocol):
    """The predictions of a profile: a stage's ProfileTable, or of the stages that share devices."""

    @property
    def points(self) -> Sequence[tuple[float, float]]:
        """(context in tokens, concurrency) that were measured, in order."""
        ...

    @property
    def extent(self) -> tuple[float, float]:
        """The longest context and the highest concurrency of those."""
        ...

    @property
    def bound(self) -> tuple[float, float]:
        """(context in tokens, concurrency) that no workload exceeds; infinite where nothing bounds it."""
        ...

    def candidates(self, devices: int) -> Sequence[Any]:
        """Layouts of so many devices, in order. Raises ConfigError if nothing can."""
        ...

    def predict(self, layout: Any, context_tokens: float, concurrency: float) -> Prediction:
        """Predicts one layout at a context in tokens, with `concurrency` sequences in the whole pool."""
        ...

    def uncorrected(self, layout: Any, context_tokens: float, concurrency: float) -> Prediction:
        """Predicts with the throughput as profiled: for callers that only ask about memory."""
        ...


@dataclass(frozen=True, slots=True)
class Workload:
    """One step of a stage. Lengths in tokens; concurrency: sequences in the whole pool."""

    mean_tokens: float
    p95_tokens: float
    max_tokens: float
    concurrency: float


@dataclass(frozen=True, slots=True)
class LayoutCandidate:
    """A parallelism as it was weighed.

    tokens_per_device_s: predicted at the mean length. memory_fraction: of a device's memory, at the
    longest length and highest concurrency expected; None where nothing is known of it.
    step_s: predicted seconds of the step; infinite where there is no throughput.
    reason: in words, where it does not fit. source: of the throughput: "measured", "interpolated" between the
    profile's rows or "extrapolated" beyond them.
    """

    parallelism: LayoutChoice
    tokens_per_device_s: float
    memory_fraction: float | None
    fits: bool
    step_s: float
    reason: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """One verdict, with all that it rests on.

    expected: the workload that throughput was judged at, and lengths and concurrency that must fit;
    None before anything was seen.
    headroom: how that follows from what was seen, in words.
    urgent: what was in use is about to run out of memory: no payback was asked for.
    saving_s: predicted seconds by which a step would be quicker; cost_s: of a switch.
    horizon_steps: for how many steps in a row it would have been; for as many more it is expected to be.
    """

    step: int
    before: LayoutChoice | None
    after: LayoutChoice
    reason: str
    candidates: tuple[LayoutCandidate, ...] = ()
    expected: Workload | None = None
    headroom: str = ""
    urgent: bool = False
    saving_s: float = 0.0
    cost_s: float = 0.0
    horizon_steps: float = 0.0

    @property
    def switched(self) -> bool:
        """Returns whether replicas have another layout than before: more or fewer of them are no switch."""
        return self.before is not None and self.before.replica != self.after.replica

    @property
    def chosen(self) -> LayoutCandidate | None:
        """The chosen candidate with its score; None where none was chosen."""
        return next((each for each in self.candidates if each.parallelism == self.after), None)


class SelectorPolicy(Protocol):
    """decide, then observe, once a step: what a step brought is known after it."""

    name: str

    def decide(self, step: int, devices: int) -> Decision:
        """Decides the layout of a step. devices: of the pool, a fact of the fleet. Raises ConfigError."""
        ...

    def observe(self, workload: Workload) -> None:
        """Takes the observed workload of the step that was decided last."""
        ...
