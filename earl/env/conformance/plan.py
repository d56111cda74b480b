"""The plan of an examination: how many episodes, within which bounds, and episodes recorded in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from earl.env.base import Action
from earl.env.conformance.card import CHECKS
from earl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Recorded:
    """An episode of a script file: these actions with this seed and task, and the return that they give.

    return_: None if not recorded.
    """

    acts: Sequence[Action]
    seed: int = 0
    task: Mapping[str, Any] = field(default_factory=dict)
    return_: float | None = None


@dataclass(frozen=True, slots=True)
class ExamPlan:
    """Settings of an examination.

    task: given to every reset. seeds: episodes that are compared. episodes: of the leak check, which ends
    after leak_s in any case. max_steps: of an episode, which is then closed. repeats: how often one action is
    taken in an episode that does not end. sessions: played at once, at most the host's capacity.
    total_s: of the whole examination; what it has not reached by then is left out. only: names of checks,
    all if empty.
    """

    task: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 8
    episodes: int = 1_000
    leak_s: float = 300.0
    max_steps: int = 100
    repeats: int = 1_000
    sessions: int = 32
    reset_s: float = 30.0
    step_s: float = 30.0
    total_s: float = 120.0
    only: frozenset[str] = frozenset()
    recorded: Sequence[Recorded] = ()

    def wants(self, check: str) -> bool:
        return not self.only or check in self.only


def check_names(names: Sequence[str]) -> frozenset[str]:
    """Names of checks as a Plan takes them. Raises ConfigError."""
    for name in names:
        if name not in CHECKS:
            raise ConfigError(f"there is no check {name!r}", f"name some of {', '.join(CHECKS)}")
    return frozenset(names)


def recorded(path: Path) -> list[Recorded]:
    """The episodes of a script file, one JSON object a line:

    {"seed": 7, "task": {}, "actions": ["[4]", "[0]"], "return": 1.0}

    Raises ConfigError naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"script {path} cannot be read: {error}", "give a file of JSON lines") from error
    return [_recorded(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def _recorded(line: str, where: str) -> Recorded:
    remedy = 'write {"seed": 7, "actions": ["..."], "return": 1.0}'
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}", remedy) from error
    if not isinstance(fields, dict) or not set(fields) <= {"seed", "task", "actions", "return"}:
        raise ConfigError(f"{where} is no recorded episode", remedy)
    actions, task, seed = fields.get("actions"), fields.get("task", {}), fields.get("seed", 0)
    if not isinstance(actions, list) or not all(isinstance(action, str) for action in actions):
        raise ConfigError(f"{where} has actions that are no list of texts", remedy)
    if not isinstance(task, dict) or not isinstance(seed, int) or not 0 <= seed < 1 << 64:
        raise ConfigError(f"{where} has a task or a seed of a wrong type", remedy)
    return_ = fields.get("return")
    if return_ is not None and not isinstance(return_, (int, float)):
        raise ConfigError(f"{where} has return {return_!r}", remedy)
    return Recorded([Action(action) for action in actions], seed, task, return_)
