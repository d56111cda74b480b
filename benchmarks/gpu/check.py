"""A check: its place in the table, its settings, and its outcome as the process that ran it tells it.

table ─► execution (parent: processes, deadlines) ─► child ─► module:function(settings) ─► CheckFigures
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from earl.errors import EarlError

T = TypeVar("T")
Sizes = Literal["card", "processor", "least"]
# Outcomes of a check.
OK, FAILED, SKIPPED = "ok", "failed", "skipped"


class CheckFailed(Exception):
    """A check measured something that its rule does not allow. figures: what it measured."""

    def __init__(self, message: str, figures: Mapping[str, Any], tolerance: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.figures, self.tolerance = dict(figures), dict(tolerance)


class CheckSkipped(EarlError):
    """A check cannot say anything on this machine."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """The settings that every check is given.

    device: "cuda" or "cpu". gpus: devices that a check may use; on the processor, ranks. sizes: of models and
    batches. directory: on disk; arenas: in shared memory; both are the check's own, and removed after it.
    """

    device: str
    gpus: int
    sizes: Sizes
    directory: Path
    arenas: Path

    @property
    def on_card(self) -> bool:
        return self.device == "cuda"

    def pick(self, card: T, processor: T, least: T | None = None) -> T:
        """The value for these sizes; the least are the processor's where none is given."""
        if self.sizes == "card":
            return card
        return processor if self.sizes == "processor" or least is None else least


@dataclass(frozen=True, slots=True)
class CheckFigures:
    """The figures of a check, and what its rule allows of them."""

    figures: Mapping[str, Any]
    tolerance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuCheck:
    """One line of the table.

    function: "module:name", of benchmarks.gpu where the module has no dot. It is called with CheckSettings,
    and returns CheckFigures, or raises CheckFailed, CheckSkipped or whatever broke.
    proves: the rule in a few words. deadline_s: of its process. needs_card: why it says nothing on a
    processor. devices: how many it needs. timed: it has the machine for itself. required: its failure makes
    the command fail.
    """

    name: str
    function: str
    proves: str
    deadline_s: float
    needs_card: str = ""
    devices: int = 1
    timed: bool = False
    required: bool = True

    def lacks(self, device: str, gpus: int) -> str:
        """Returns why the check cannot run with so many devices; "" if it can."""
        if self.needs_card and device != "cuda":
            return f"it needs a CUDA card: {self.needs_card}"
        if self.devices > gpus:
            return f"it needs {self.devices} devices: give --gpus {self.devices}"
        return ""


def judged(
    figures: Mapping[str, Any], tolerance: Mapping[str, Any], faults: Mapping[str, bool]
) -> CheckFigures:
    """The figures, if none of `faults` (what is wrong: whether it is) is true. Raises CheckFailed."""
    wrong = [text for text, is_so in faults.items() if is_so]
    if wrong:
        raise CheckFailed("; ".join(wrong), figures, tolerance)
    return CheckFigures(figures, tolerance)
