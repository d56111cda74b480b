"""The report card: what was checked, how it stood, what was seen and what to do. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


class CheckVerdict(enum.StrEnum):
    """SKIP: could not be judged here; `seen` says why. Only FAIL fails the card."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the card.

    name: of the check, in the order of CHECKS. subject: the environment, or the host. seen: with values.
    remedy: what to do about it, "" if nothing. figures: numbers worth keeping.
    """

    name: str
    subject: str
    verdict: CheckVerdict
    seen: str
    remedy: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Card:
    """All checks of one host. seconds: how long they took."""

    host: str
    environments: Sequence[str]
    checks: Sequence[Check]
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.count(CheckVerdict.FAIL)

    def count(self, verdict: CheckVerdict) -> int:
        return sum(check.verdict is verdict for check in self.checks)

    def named(self, name: str) -> list[Check]:
        """The checks of this name, one for each subject."""
        return [check for check in self.checks if check.name == name]

    def as_object(self) -> dict[str, Any]:
        """For JSON: {"passed", "host", "environments", "seconds", "counts", "checks": [...]}."""
        return {
            "passed": self.passed,
            "host": self.host,
            "environments": list(self.environments),
            "seconds": round(self.seconds, 3),
            "counts": {verdict.value: self.count(verdict) for verdict in CheckVerdict},
            "checks": [asdict(check) | {"verdict": check.verdict.value} for check in self.checks],
        }


# Every check by name, with the question that it answers; those of an environment, then those of the host.
ENVIRONMENT_CHECKS: dict[str, str] = {
    "reset": "does a reset begin an episode, with something to see and no reward?",
    "policy": "do episodes of a random policy end by themselves, with rewards that tell something?",
    "determinism": "do the same seed and actions give the same, in this process and in another?",
    "seeds": "do different seeds give different episodes?",
    "replay": "is a repeated seq answered with the same result, without another step?",
    "sessions": "do many sessions at once stay apart?",
    "script": "do the recorded episodes come out as recorded?",
    "actions": "does it take any text that a model may write?",
    "observations": "are observations bounded?",
    "cancel": "may a step be cancelled or its session closed in the middle?",
    "leaks": "are memory, files, threads and processes given back?",
    "speed": "how long do resets and steps take?",
}
HOST_CHECKS: dict[str, str] = {
    "hello": "does Hello say all that the gateway needs?",
    "strangers": "are an unknown environment, an unknown session and a wrong seq refused?",
    "capacity": "is a session beyond the capacity refused?",
    "reconnect": "does it come back with its sessions after the stream was lost?",
    "frames": "is every message one of the protocol, in UTF-8?",
    "answers": "does every result answer what was asked, in a session of this host?",
    "late": "does nothing come after Cancel or Close?",
    "numbers": "are rewards and metrics finite, and returns within the declared range?",
    "endings": "does every episode end as the protocol has it?",
    "sizes": "does every result fit the gateway's bound?",
    "progress": "does Progress name what is under way?",
    "pings": "does the host answer pings while its environments work?",
    "drain": "does SIGTERM let open episodes end?",
}
CHECKS = ENVIRONMENT_CHECKS | HOST_CHECKS


def in_order(checks: Iterable[Check]) -> list[Check]:
    """By subject in the order of their appearance, and within it as CHECKS has them."""
    checks = list(checks)
    subjects = list(dict.fromkeys(check.subject for check in checks))
    names = list(CHECKS)
    return sorted(checks, key=lambda check: (subjects.index(check.subject), names.index(check.name)))
