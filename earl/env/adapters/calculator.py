"""A word with a calculator: arithmetic too long to do in the head, in two turns.

    user       What is 734 * 89? …how to call…        turn 1: the agent calls the tool
    tool       65326                                  turn 2: the agent states the answer

Task: {"terms": 2, "digits": 3, "operators": "+-*", "instruction": "…"}. The problem is drawn from the
seed; evaluation's problems are never training's (held_out.py). The answer of turn 2 is the last number
in it.

Reward: CALLED for a call that the tool can carry out, COMPUTED more if what it computed is the problem's
value, ANSWERED more for the right answer in turn 2; they add up to 1. A turn 1 without such a call ends
the episode with nothing. Metrics, each 0 or 1: win (the right answer), called, computed.

Legal actions, for a warm-up that teaches the form and leaves the task to be learned: in turn 1 calls with
the problem's numbers under each operator, one of which is right, and one with its first number alone; in
turn 2 the tool's answer and the problem's first number.
"""

from __future__ import annotations

import random
import re
from typing import Any

from earl.env.adapters.arithmetic import ArithmeticFault, evaluate, number_text
from earl.env.adapters.held_out import drawn
from earl.env.adapters.metrics import metrics
from earl.env.adapters.settings import Letters, Setting, Text, Whole, checked
from earl.env.base import Environment, Observation, StepResult
from earl.env.tool_calls import Fault, Tool, ToolCall, describe, object_schema, parse, render

OPERATORS = "+-*"
CALLED, COMPUTED, ANSWERED = 0.1, 0.3, 0.6
CALCULATOR = Tool("calculator", "Evaluates arithmetic.", object_schema(expression="string"))
# Added to the question: the form of a call, by an example that is no problem's.
EXAMPLE = render(ToolCall("calculator", {"expression": "12 + 30"}))
INSTRUCTION = f"Call the calculator, for example {EXAMPLE}"

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_TASK: dict[str, Setting] = {
    "terms": Whole(2, 2, 6),
    "digits": Whole(3, 1, 12),
    "operators": Letters(OPERATORS),
    "instruction": Text(INSTRUCTION),
}


class Calculator(Environment):
    """One problem, for which the agent may call the calculator once before it answers."""

    name = "tools/calculator"
    description = describe([CALCULATOR])
    tools = (CALCULATOR,)
    reward_range = (0.0, 1.0)
    blocking = False

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """ValueError for a bad task."""
        settings = checked(task, _TASK)
        self._problem = drawn(seed, lambda number: _problem(number, settings), str)
        self._value = evaluate(self._problem)
        self._computed: float | None = None
        first, _, *rest = self._problem.split()
        expressions = [first, *(" ".join([first, other, *rest]) for other in OPERATORS)]
        calls = [render(ToolCall("calculator", {"expression": expression})) for expression in expressions]
        return Observation(f"What is {self._problem}? {settings['instruction']}".rstrip(), calls)

    def step(self, action: str) -> StepResult:
        """Turn 1 is a call, turn 2 the answer."""
        return self._call(action) if self._computed is None else self._answer(action)

    def _call(self, action: str) -> StepResult:
        calls = parse(action, [CALCULATOR], self.max_action_characters)
        if isinstance(calls, Fault):
            return self._ended(calls.message)
        try:
            value = evaluate(calls[0].arguments["expression"])
        except ArithmeticFault as fault:
            return self._ended(f"the calculator says: {fault}")
        self._computed = float(value == self._value)
        text = number_text(value)
        observation = Observation(text, [text, self._problem.split()[0]], "tool")
        return StepResult(observation, CALLED + COMPUTED * self._computed)

    def _answer(self, action: str) -> StepResult:
        numbers = _NUMBER.findall(action.replace(",", ""))
        right = bool(numbers) and numbers[-1] == number_text(self._value)
        return self._ended("right" if right else f"it is {number_text(self._value)}", ANSWERED * right, right)

    def _ended(self, text: str, reward: float = 0.0, right: bool = False) -> StepResult:
        figures = metrics(win=right, called=self._computed is not None, computed=self._computed or 0.0)
        return StepResult(Observation(text), reward, done=True, metrics=figures)


def _problem(number: int, settings: dict[str, Any]) -> str:
    """`terms` numbers of `digits` digits, joined by operators."""
    rng = random.Random(number)
    low, high = 10 ** (settings["digits"] - 1), 10 ** settings["digits"] - 1
    parts = [str(rng.randint(low, high))]
    for _ in range(settings["terms"] - 1):
        parts += [rng.choice(settings["operators"]), str(rng.randint(low, high))]
    return " ".join(parts)


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module."""
    return [Calculator]
