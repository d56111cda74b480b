"""Questions about numbers that want a program: the agent runs Python, in the sandbox, and says the answer.

    user       What is the spread (largest minus smallest) of 734, 89, 412? …how to call…
    agent      <tool_call>{"name": "python", "arguments": {"code": "max([734, 89]) - 89"}}</tool_call>
    tool       645
    agent      645

Task: {"kinds": ["sum", "spread"], "numbers": 5, "digits": 3, "calls": 4, "instruction": "…"}: which of
KINDS are asked, how many numbers of how many digits, how many actions may call. The question is drawn
from the seed; evaluation's are never training's (held_out.py). An action without a call is the answer:
the last number in it. An action that calls when no calls are left ends the episode.

Reward: CALLED for the first code that ran to its end and printed something, COMPUTED more when the last
number that one printed is the answer, ANSWERED more for the right answer; they add up to 1. Metrics, each
0 or 1: win (the right answer), called, computed; and calls, how many programs were run.

Legal actions, for a warm-up that teaches the form and leaves the task to be learned: before the first
call programs for these numbers, of every kind that may be asked of them (or that there is, if that is
one); after it what was printed last and the question's first number.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from earl.env.adapters.held_out import drawn
from earl.env.adapters.metrics import metrics
from earl.env.adapters.settings import Some, Text, Whole, checked
from earl.env.base import Environment, Observation, StepResult, ToolCall
from earl.env.sandbox import RunEnd, Sandbox, SandboxLimits, SandboxRun
from earl.env.tool_calls import render
from earl.env.tools import Called, ToolEnvironment, tool
from earl.errors import SandboxUnavailable, ServiceUnavailable

CALLED, COMPUTED, ANSWERED = 0.1, 0.3, 0.6
LIMITS = SandboxLimits(wall_s=5.0, cpu_s=5, output_bytes=2_000)

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Kind:
    """question: with {shown}, the numbers as they are told. code: with {n}, the list, or {a} and {b}, the
    first two numbers. value: the answer. pair: whether it is about two numbers alone."""

    question: str
    code: str
    value: Callable[[Sequence[int]], int]
    pair: bool = False


KINDS = {
    "sum": Kind("the sum of {shown}", "sum({n})", sum),
    "largest": Kind("the largest of {shown}", "max({n})", max),
    "smallest": Kind("the smallest of {shown}", "min({n})", min),
    "spread": Kind(
        "the spread (largest minus smallest) of {shown}", "max({n}) - min({n})", lambda n: max(n) - min(n)
    ),
    "median": Kind("the median of {shown}", "sorted({n})[len({n}) // 2]", lambda n: sorted(n)[len(n) // 2]),
    "evens": Kind(
        "the count of even numbers among {shown}",
        "sum(x % 2 == 0 for x in {n})",
        lambda n: sum(x % 2 == 0 for x in n),
    ),
    "product": Kind("{a} times {b}", "{a} * {b}", lambda n: n[0] * n[1], pair=True),
    "digits": Kind(
        "the sum of the digits of {a} to the power of {b}",
        "sum(map(int, str({a} ** {b})))",
        lambda n: sum(map(int, str(n[0] ** n[1]))),
        pair=True,
    ),
    "remainder": Kind("the remainder of {b} divided by {a}", "{b} % {a}", lambda n: n[1] % n[0], pair=True),
}


def call_of(code: str) -> str:
    """The text that calls the tool with this code."""
    return render(ToolCall("python", {"code": code}))


# Added to the question: the form of a call, by an example that is no question's.
INSTRUCTION = f"Use Python, for example {call_of('abs(3 - 7)')}, then say the number."
_TASK = {
    "kinds": Some(*KINDS),
    "numbers": Whole(5, 2, 50),
    "digits": Whole(3, 1, 9),
    "calls": Whole(4, 1, 32),
    "instruction": Text(INSTRUCTION),
}


@dataclass(frozen=True, slots=True)
class Question:
    """numbers: at least two; a median needs an odd count of them."""

    kind: str
    numbers: tuple[int, ...]

    @property
    def text(self) -> str:
        """The question as it is asked."""
        a, b = self.numbers[:2]
        shown = ", ".join(map(str, self.numbers))
        return f"What is {KINDS[self.kind].question.format(shown=shown, a=a, b=b)}?"

    @property
    def answer(self) -> int:
        """The one right number."""
        return KINDS[self.kind].value(self.numbers)

    def code(self, kind: str = "") -> str:
        """The program that answers it, or what it would be for another kind."""
        a, b = self.numbers[:2]
        return KINDS[kind or self.kind].code.format(n=list(self.numbers), a=a, b=b)


class PythonTool(ToolEnvironment):
    """One question, for which the agent may run several programs before it answers."""

    name = "tools/python"
    description = "A question about numbers; python runs code in a sandbox; an answer without a call counts."
    reward_range = (0.0, 1.0)
    result_characters = 2_200
    observation_characters = 4_000

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """ValueError for a bad task."""
        settings = checked(task, _TASK)
        self.question = drawn(seed, lambda number: _question(number, settings), str)
        self._runs: list[SandboxRun] = []
        self._left: int = settings["calls"]
        self._earned = 0.0
        pair = KINDS[self.question.kind].pair
        alike = [name for name in settings["kinds"] if KINDS[name].pair is pair]
        kinds = alike if len(alike) > 1 else [name for name in KINDS if KINDS[name].pair is pair]
        codes = [self.question.code(name) for name in kinds]
        text = f"{self.question.text} {settings['instruction']}".rstrip()
        return Observation(text, [call_of(code) for code in codes])

    @tool(timeout_s=60, parallel=False)
    def python(self, code: str) -> str:
        """Runs Python 3 code and returns what it prints, and the value of its last line."""
        try:
            run = sandbox().run(code)
        except (SandboxUnavailable, OSError) as error:
            raise ServiceUnavailable(
                f"the sandbox did not start: {error}", "earl env test says why"
            ) from error
        self._runs.append(run)
        return run.shown()

    def called(self, calls: Sequence[Called], result: StepResult) -> StepResult:
        """The programs' outputs, with what they earn."""
        if self._left == 0:
            return self._ended("no calls are left")
        self._left -= 1
        earned = CALLED * self._ran + COMPUTED * self._computed
        reward, self._earned = earned - self._earned, earned
        assert isinstance(result.observation, Observation)
        last = _last_number(self._runs[-1].output) if self._runs else ""
        legal = [number for number in (last, str(self.question.numbers[0])) if number]
        shown = result.observation
        return StepResult(Observation(shown.text, legal, shown.role, shown.tool_results), reward)

    def answered(self, text: str) -> StepResult:
        """The last number of the text is the answer."""
        right = _last_number(text) == str(self.question.answer)
        return self._ended("right" if right else f"it is {self.question.answer}", ANSWERED * right, right)

    @property
    def _ran(self) -> bool:
        return any(run.end is RunEnd.OK and run.output.strip() for run in self._runs)

    @property
    def _computed(self) -> bool:
        answer = str(self.question.answer)
        return any(run.end is RunEnd.OK and _last_number(run.output) == answer for run in self._runs)

    def _ended(self, text: str, reward: float = 0.0, right: bool = False) -> StepResult:
        figures = metrics(win=right, called=self._ran, computed=self._computed, calls=len(self._runs))
        return StepResult(Observation(text), reward, done=True, metrics=figures)


@cache
def sandbox() -> Sandbox:
    """Returns the sandbox that all sessions of this process share; it keeps nothing between runs."""
    return Sandbox(LIMITS)


def _last_number(text: str) -> str:
    numbers = _NUMBER.findall(re.sub(r"(?<=\d),(?=\d{3}\b)", "", text[-20_000:]))
    return numbers[-1] if numbers else ""


def _question(number: int, settings: dict[str, Any]) -> Question:
    rng = random.Random(number)
    kind = rng.choice(settings["kinds"])
    low, high = 10 ** (settings["digits"] - 1), 10 ** settings["digits"] - 1
    count = 2 if KINDS[kind].pair else settings["numbers"]
    if kind == "median":
        count += 1 - count % 2
    numbers = [rng.randint(low, high) for _ in range(count)]
    if kind == "digits":
        numbers = [rng.randint(2, 9), rng.randint(10, 60)]
    return Question(kind, tuple(numbers))


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module. Raises SandboxUnavailable where code cannot
    be confined.
    """
    sandbox().check()
    return [PythonTool]
