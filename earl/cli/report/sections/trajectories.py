"""The trajectories that a run kept (samples.jsonl), to choose from and to read token by token.

Text of models and environments leaves here with its control characters made visible; it is never markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earl.cli.report.data import Record, kept_samples
from earl.obs.tail import Tail
from earl.visible import visible

# Rows of one answer.
ROWS = 200
# Characters of a sibling's text.
BEGINNING = 240


@dataclass(frozen=True, slots=True)
class Filters:
    """The choice of trajectories to show; a None admits any. kind: "training", "evaluation", or an
    evaluation's name; reward: "positive", "zero", "negative"; step: from first to last. text: part of any
    message, in upper or lower case."""

    kind: str | None = None
    ending: str | None = None
    reward: str | None = None
    first: int | None = None
    last: int | None = None
    text: str | None = None

    def takes(self, record: Record) -> bool:
        evaluation = str(record.get("evaluation") or "")
        kinds = {"training"} if not evaluation else {"evaluation", evaluation}
        step = record.get("step", 0)
        return (
            (self.kind is None or self.kind in kinds)
            and (self.ending is None or self.ending == record.get("ending"))
            and (self.reward is None or self.reward == sign(record.get("reward")))
            and (self.first is None or step >= self.first)
            and (self.last is None or step <= self.last)
            and (self.text is None or contains(record, self.text.lower()))
        )


class Trajectories:
    """The trajectories that one run's directory keeps."""

    def __init__(self, directory: Path) -> None:
        self._tail = Tail(directory / "samples.jsonl")
        self._lines: list[dict[str, Any]] = []
        self._kept: dict[int, Record] = {}

    def update(self, newest: int | None) -> dict[str, Any]:
        """The section with what there is to choose from. newest: version after the last step."""
        new = self._tail.read()
        if self._tail.renewed:
            self._lines = []
        self._lines += new
        self._kept = {
            record["ticket"]: record
            for record in kept_samples(self._lines, newest)
            if isinstance(record.get("ticket"), int)
        }
        every = self._kept.values()
        return {
            "count": len(self._kept),
            "newest": max(self._kept, default=0),
            "endings": sorted({str(record.get("ending")) for record in every}),
            "evaluations": sorted(
                {str(record["evaluation"]) for record in every if record.get("evaluation")}
            ),
            "steps": [
                min((record.get("step", 0) for record in every), default=0),
                max((record.get("step", 0) for record in every), default=0),
            ],
        }

    @property
    def kept(self) -> list[Record]:
        """The records of all, in the order of their steps."""
        return list(self._kept.values())

    def listing(self, filters: Filters) -> dict[str, Any]:
        """The newest that the filters take, the newest first, at most ROWS."""
        taken = [record for record in self._kept.values() if filters.takes(record)]
        return {"count": len(taken), "rows": [row(record) for record in reversed(taken[-ROWS:])]}

    def whole(self, ticket: int) -> dict[str, Any] | None:
        """One trajectory with its turns; None if it is not kept, or no longer."""
        record = self._kept.get(ticket)
        if record is None:
            return None
        return {**row(record), "turns": turns_of(record), **self._related(record)}

    def _related(self, record: Record) -> dict[str, Any]:
        """siblings: of its group, which played the same task; evaluated: the same task in all evaluations."""
        is_evaluated = bool(record.get("evaluation"))
        kind, key = ("evaluated", "index") if is_evaluated else ("siblings", "group")
        alike = [
            beginning(other)
            for other in self._kept.values()
            if bool(other.get("evaluation")) == is_evaluated and other.get(key) == record.get(key)
        ]
        return {"siblings": [], "evaluated": [], kind: alike}


def beginning(record: Record) -> dict[str, Any]:
    """The row with the beginning of what the policy wrote."""
    turns = [turn for turn in record.get("turns") or () if isinstance(turn, Mapping)]
    text = " ".join(str(turn.get("text")) for turn in turns if turn.get("role") == "assistant")
    return {**row(record), "said": visible(text[:BEGINNING])}


def contains(record: Record, text: str) -> bool:
    """Returns whether a turn's text has it; text: in lower case."""
    turns = record.get("turns")
    return isinstance(turns, list) and any(
        isinstance(turn, Mapping) and text in str(turn.get("text", "")).lower() for turn in turns
    )


def sign(reward: object) -> str:
    if not isinstance(reward, (int, float)) or reward == 0:
        return "zero"
    return "positive" if reward > 0 else "negative"


def row(record: Record) -> dict[str, Any]:
    names = ("ticket", "step", "group", "index", "version", "reward", "tokens")
    shown = {name: record.get(name) for name in names}
    return {
        **shown,
        "evaluation": visible(str(record.get("evaluation") or "")),
        "ending": visible(str(record.get("ending") or "")),
    }


def turns_of(record: Record) -> list[dict[str, Any]]:
    """The turns of a trajectory as the page shows them."""
    turns = record.get("turns")
    return [turn_of(turn) for turn in turns if isinstance(turn, Mapping)] if isinstance(turns, list) else []


def turn_of(turn: Mapping[str, Any]) -> dict[str, Any]:
    """role, text and tokens; sampled: what the engine sampled, token by token, where that was kept."""
    shown: dict[str, Any] = {
        "role": visible(str(turn.get("role"))),
        "text": visible(str(turn.get("text"))),
        "tokens": turn.get("tokens") if isinstance(turn.get("tokens"), int) else 0,
    }
    sampled = turn.get("sampled")
    if isinstance(sampled, Mapping):
        named = [sampled.get(name) for name in ("texts", "ids", "logprobs", "versions")]
        columns = [column for column in named if isinstance(column, list)]
        if len(columns) == len(named) and len({len(column) for column in columns}) == 1:
            texts, *numbers = columns
            shown["sampled"] = {
                "texts": [visible(str(text)) for text in texts or ()],
                **dict(zip(("ids", "logprobs", "versions"), numbers, strict=True)),
            }
    return shown
