"""The tasks of reasoning-gym (package reasoning-gym), one turn each: a question, an answer, its score.

Environment "reasoning_gym/NAME" is the dataset NAME, for example "reasoning_gym/basic_arithmetic". Task:
the dataset's own configuration, for example {"min_terms": 2, "max_terms": 2}, and "instruction", a text
put after the question. The instance is a function of the seed; evaluation's are never training's as far
as the task has enough of them (held_out.py).

The answer in a text: the part between the last <answer> and </answer>; without them
the last number, if the task's own answer is a number; otherwise the last lines that are not empty, as many
as the task's own answer has. It is scored by reasoning-gym: the reward is that score, between 0 and 1. Some
of its graders would run an answer as Python: those are given only what is harmless (safe_answers.py), and
anything else scores as an empty answer. Metrics: win (the score is 1), score,
answered (an answer was found).
"""

from __future__ import annotations

import random
import re
from typing import Any, ClassVar

from reasoning_gym.algebra import polynomial_multiplication
from reasoning_gym.algorithmic import word_ladder
from reasoning_gym.factory import DATASETS, create_dataset
from reasoning_gym.games import knight_swap
from sympy.core.sorting import default_sort_key
from sympy.polys.monomials import itermonomials

from earl.env.adapters import episode_random
from earl.env.adapters.held_out import drawn
from earl.env.adapters.ordered_sets import OrderedFrozenSet, OrderedSet
from earl.env.adapters.safe_answers import harmless
from earl.env.adapters.variants import variant
from earl.env.base import Environment, Observation, StepResult

LEFT_OUT = {
    "codeio": "runs programs that draw chance and read clocks of their own: a seed is no instance",
    "composite": "is made of other datasets, that its configuration names",
}
# Set by the seed, not by the task.
_RESERVED = frozenset({"seed", "size"})
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
# Longer than any number or line that a task asks for.
_MAX_ANSWER_CHARACTERS = 20_000

# This module, which draws from the chance of the process, would be imported late.
episode_random.load("reasoning_gym.induction.list_functions.generators", "reasoning_gym")
# What these make of a seed follows the order of their sets; of two more, that of their letters.
word_ladder.__dict__["set"] = OrderedSet
knight_swap.__dict__["frozenset"] = OrderedFrozenSet
polynomial_multiplication.__dict__["itermonomials"] = lambda *given: sorted(
    itermonomials(*given), key=default_sort_key
)


class ReasoningGym(Environment):
    """One question of the class's dataset."""

    dataset_name: ClassVar[str]
    reward_range = (0.0, 1.0)

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """Starts an episode.

        Raises ValueError, TypeError or AssertionError for a task that the dataset does not accept.
        """
        given = dict(task)
        instruction = given.pop("instruction", "")
        for key in _RESERVED & set(given):
            raise ValueError(f"task key {key!r} cannot be set: instances come from the episode's seed")

        def make(number: int) -> tuple[Any, dict[str, Any]]:
            with episode_random.chance(random.Random(number)):
                dataset: Any = create_dataset(self.dataset_name, **given, seed=number, size=1)
                if isinstance(getattr(dataset, "letters", None), set):
                    dataset.letters = OrderedFrozenSet(dataset.letters)
                return dataset, dataset[0]

        self._dataset, self._entry = drawn(seed, make, lambda made: made[1]["question"])
        question = self._entry["question"]
        return Observation(f"{question}\n{instruction}" if instruction else question)

    def step(self, action: str) -> StepResult:
        """Takes the answer, which ends the episode."""
        right = self._entry["answer"]
        answer = extracted(action, right)
        with episode_random.chance(random.Random(0)):
            score = self._scored(answer) if answer else 0.0
        score = min(max(score, 0.0), 1.0)
        metrics = {"win": float(score >= 1.0), "score": score, "answered": float(bool(answer))}
        return StepResult(Observation(f"the answer is {right}"), score, done=True, metrics=metrics)

    def _scored(self, answer: str) -> float:
        if not harmless(self.dataset_name, answer, self._entry):
            answer = ""
        try:
            return float(self._dataset.score_answer(answer, self._entry))
        except Exception:  # noqa: BLE001
            # A grader that takes the task's own answer found no form in this one; any other is broken.
            self._dataset.score_answer(self._entry["answer"], self._entry)
            return 0.0


def extracted(text: str, right: Any) -> str:
    """The answer that a text gives to a task whose own answer is `right`; empty if it gives none."""
    text = text[-_MAX_ANSWER_CHARACTERS:]
    tagged = _TAGGED.findall(text)
    if tagged:
        return tagged[-1].strip()
    if isinstance(right, str) and _NUMBER.fullmatch(right):
        numbers = _NUMBER.findall(re.sub(r"(?<=\d),(?=\d{3}\b)", "", text))
        return numbers[-1] if numbers else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    count = len(right.strip().splitlines()) if isinstance(right, str) else 1
    return "\n".join(lines[-count:])


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module: every dataset but LEFT_OUT."""
    return [
        variant(
            ReasoningGym,
            f"reasoning_gym/{name}",
            f"reasoning-gym's {name}: one question, one answer.",
            dataset_name=name,
        )
        for name in sorted(DATASETS)
        if name not in LEFT_OUT
    ]
