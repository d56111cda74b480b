"""The report card: each check's verdict, observation and remedy. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any


class CheckVerdict(enum.StrEnum):
    """SKIP: could not be judged here, for the reason in `seen`. Only FAIL fails the card."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """A check's verdict, before it has its line on the card; the fields are those of `Check`."""

    verdict: CheckVerdict
    seen: str
    remedy: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    def on_card(self, name: str, subject: str) -> Check:
        return Check(name, subject, self.verdict, self.seen, self.remedy, self.figures)


passed = partial(CheckOutcome, CheckVerdict.PASS)
warned = partial(CheckOutcome, CheckVerdict.WARN)
failed = partial(CheckOutcome, CheckVerdict.FAIL)
skipped = partial(CheckOutcome, CheckVerdict.SKIP)


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
    """All checks of one host. seconds: how long they took. unreached: the checks for which there was no time
    left, as "NAME of SUBJECT"."""

    host: str
    environments: Sequence[str]
    checks: Sequence[Check]
    seconds: float
    unreached: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        return not self.count(CheckVerdict.FAIL)

    def count(self, verdict: CheckVerdict) -> int:
        return sum(check.verdict is verdict for check in self.checks)

    def named(self, name: str) -> list[Check]:
        """The checks of this name, one for each subject."""
        return [check for check in self.checks if check.name == name]

    def as_object(self) -> dict[str, Any]:
        """Returns {"passed", "host", "environments", "seconds", "unreached", "counts", "checks"} for JSON."""
        return {
            "passed": self.passed,
            "host": self.host,
            "environments": list(self.environments),
            "seconds": round(self.seconds, 3),
            "unreached": list(self.unreached),
            "counts": {verdict.value: self.count(verdict) for verdict in CheckVerdict},
            "checks": [asdict(check) | {"verdict": check.verdict.value} for check in self.checks],
        }


# Every check by name, with the question that it answers; those of an environment, then those of the host.
ENVIRONMENT_CHECKS: dict[str, str] = {
    "reset": "does a reset begin an episode, with an observation and no reward?",
    "policy": "do episodes of a random policy end by themselves, with rewards that differ?",
    "determinism": "do the same seed and actions give the same episode, in this process and in another?",
    "seeds": "do different seeds give different episodes?",
    "replay": "is a repeated seq answered with the same result, without another step?",
    "sessions": "are concurrent sessions independent?",
    "script": "do the recorded episodes come out as recorded?",
    "actions": "does it take any text that a model may write, and pay nothing for a malformed one?",
    "endless": "does an episode end, also if one action is repeated?",
    "observations": "are observations bounded, and is none of them the episode so far?",
    "seats": "if a client may play several seats, does each have turns, and pay for what it does itself?",
    "cancel": "can a step be cancelled, or its session closed, while it runs?",
    "leaks": "are memory, files, threads and processes released?",
    "speed": "how long do resets and steps take?",
}
HOST_CHECKS: dict[str, str] = {
    "hello": "does Hello have all that the gateway needs?",
    "strangers": "are an unknown environment, an unknown session and a wrong seq refused?",
    "capacity": "is a session beyond the capacity refused?",
    "reconnect": "does it reconnect with its sessions after the stream was lost?",
    "frames": "is every message one of the protocol, in UTF-8?",
    "answers": "does every result answer a request, in a session of this host?",
    "late": "is nothing sent after Cancel or Close?",
    "numbers": "are rewards and metrics finite, and returns within the declared range?",
    "endings": "does every episode end as the protocol requires?",
    "sizes": "is every result within the gateway's size limit?",
    "progress": "does Progress name a call in progress?",
    "pings": "does the host answer pings while its environments work?",
    "drain": "does SIGTERM let open episodes finish?",
}
CHECKS = ENVIRONMENT_CHECKS | HOST_CHECKS


def in_order(checks: Iterable[Check]) -> list[Check]:
    """Sorts checks by subject, in order of appearance, and within a subject as CHECKS has them."""
    checks = list(checks)
    subjects = list(dict.fromkeys(check.subject for check in checks))
    names = list(CHECKS)
    return sorted(checks, key=lambda check: (subjects.index(check.subject), names.index(check.name)))
