"""Environments of SkyRL-gym (package skyrl-gym): questions whose answers its own graders score.

    skyrl_gym/gsm8k              one answer, "#### 42" in it: reward 1 or 0
    skyrl_gym/gsm8k_multi_turn   up to max_turns tries; the right one 1, others a little for their form
    skyrl_gym/aime               one answer, "Answer: 42" in it: reward 1 or -1

SkyRL-gym brings no questions: they come from the task. {"file": "train.jsonl"} is JSON Lines on the host
with a "question" and an "answer" each, GSM8K's own files for example ("… #### 72" is the answer 72);
{"rows": [{"question": "…", "answer": "…"}]} gives them at once; with neither, reasoning-gym's
"gsm_symbolic" makes them (grade-school mathematics; package reasoning-gym). The seed draws one;
evaluation's are never training's as far as there are enough (held_out.py).

Task, optional: {"instruction": "…", "max_turns": 5}. The instruction is put after the question.
Metrics: win (the right answer) and turns.

SkyRL-gym's others are not served: LEFT_OUT says why.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, ClassVar

import skyrl_gym

from earl.env.adapters.held_out import drawn
from earl.env.adapters.settings import Setting, Text, Whole, checked
from earl.env.base import Environment, Observation, StepResult

LEFT_OUT: dict[str, str] = {
    "lcb": "runs the agent's code without a sandbox",
    "search": "needs a retrieval server",
    "searchcode": "runs the agent's code without a sandbox, and needs a retrieval server",
    "text2sql": "runs the agent's SQL on the database's own file, with the right to write and attach others",
}
MAX_FILE_BYTES = 256 << 20
MAX_ROWS = 1_000_000
_MARK = "####"


class _Rows:
    """The task's questions, given at once."""

    default: Any = None
    expected = 'a list of {"question": text, "answer": text}, not empty'

    def taken(self, value: Any) -> Any:
        if not isinstance(value, list) or not value:
            return None
        rows = [_row(entry) for entry in value]
        return None if None in rows else rows


class SkyRLGym(Environment):
    """One question of one of SkyRL-gym's environments."""

    id: ClassVar[str]
    instruction: ClassVar[str]
    turns: ClassVar[bool] = False

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """Starts an episode. Raises ValueError for a malformed task."""
        keys: dict[str, Setting] = {
            "rows": _Rows(),
            "file": Text(None),
            "instruction": Text(self.instruction),
        }
        if self.turns:
            keys["max_turns"] = Whole(5, 1, 100)
        settings = checked(task, keys)
        if settings["rows"] and settings["file"]:
            raise ValueError("rows and file are both given; give one of them")
        question, answer = _question(settings["rows"], settings["file"], seed)
        truth = {"reward_spec": {"ground_truth": answer}, "reward_model": {"ground_truth": answer}}
        extras: dict[str, Any] = truth | {"max_turns": settings.get("max_turns", 1)}
        self._answer = answer
        self._turns = 0
        self._environment = skyrl_gym.make(self.id, env_config={}, extras=extras)
        self._environment.init([{"role": "user", "content": question}])
        return Observation(f"{question}\n{settings['instruction']}".rstrip())

    def step(self, action: str) -> StepResult:
        """Takes an answer."""
        self._turns += 1
        result: Any = self._environment.step(action)
        reward = float(result["reward"])
        if not result["done"]:
            shown = "\n".join(message["content"] for message in result["observations"])
            return StepResult(Observation(shown), reward)
        metrics = {"win": float(reward >= 1.0), "turns": float(self._turns)}
        return StepResult(Observation(f"the answer is {self._answer}"), reward, done=True, metrics=metrics)

    def close(self) -> None:
        """Releases the environment."""
        if (environment := getattr(self, "_environment", None)) is not None:
            environment.close()


class Gsm8k(SkyRLGym):
    """A question of GSM8K, with one answer."""

    name = "skyrl_gym/gsm8k"
    description = 'Grade-school mathematics; the answer stands after "#### ".'
    id = "gsm8k"
    instruction = 'Think step by step, then give the number alone after "#### ", for example: #### 42'
    reward_range = (0.0, 1.0)


class Gsm8kMultiTurn(SkyRLGym):
    """Several tries at one question. A try in the right form earns at most 0.2 over all turns."""

    name = "skyrl_gym/gsm8k_multi_turn"
    description = 'Grade-school mathematics in several tries; the answer stands after "#### ".'
    id = "gsm8k_multi_turn"
    instruction = Gsm8k.instruction
    reward_range = (0.0, 1.2)
    turns = True


class Aime(SkyRLGym):
    """A question of the AIME, with one answer in the form that its graders expect."""

    name = "skyrl_gym/aime"
    description = 'Mathematics; the answer stands after "Answer: ".'
    id = "aime"
    instruction = (
        "Think step by step, then give the answer in a last line of its own, for example: Answer: 42"
    )
    reward_range = (-1.0, 1.0)


def _question(rows: list[tuple[str, str]] | None, file: str | None, seed: int) -> tuple[str, str]:
    """(question, answer) of a seed."""
    if file:
        rows = _read(file, Path(file).stat().st_mtime_ns if Path(file).is_file() else 0)
    if rows:
        return drawn(seed, lambda number: rows[number % len(rows)], lambda row: row[0])
    try:
        from reasoning_gym.factory import create_dataset
    except ModuleNotFoundError as error:
        raise ValueError(
            'a task without "rows" or "file" draws from package reasoning-gym, which is not installed; '
            'give one of them, or pip install "earl[reasoning-gym]"'
        ) from error

    def make(number: int) -> tuple[str, str]:
        entry = create_dataset("gsm_symbolic", seed=number, size=1)[0]
        return entry["question"], str(entry["answer"])

    return drawn(seed, make, lambda made: made[0])


def _row(entry: Any) -> tuple[str, str] | None:
    """(question, answer) of an entry; None if it is none."""
    if not isinstance(entry, dict):
        return None
    question, answer = entry.get("question"), entry.get("answer")
    if not isinstance(question, str) or not isinstance(answer, (str, int, float)):
        return None
    return question, str(answer).rpartition(_MARK)[2].strip().replace(",", "")


@functools.lru_cache(maxsize=4)
def _read(file: str, changed: int) -> list[tuple[str, str]]:
    """The rows of a file; `changed` is when it was written. Raises ValueError."""
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"file {file!r} is not on this host")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"file {file!r} is larger than {MAX_FILE_BYTES} bytes")
    rows: list[tuple[str, str]] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = _row(json.loads(line))
            except ValueError:
                row = None
            if row is None or number > MAX_ROWS:
                raise ValueError(
                    f'line {number} of file {file!r} is not {{"question": text, "answer": text}}, '
                    f"or one of more than {MAX_ROWS}"
                )
            rows.append(row)
    if not rows:
        raise ValueError(f"file {file!r} is empty")
    return rows


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module."""
    return [Gsm8k, Gsm8kMultiTurn, Aime]
