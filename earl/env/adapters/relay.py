"""Count on: as long as the agent is right, the episode continues. Its context grows with its skill.

    user   4 0 7        agent  [8]      right: the next turn
    user   1 9 2        agent  [3]      …
    user   5 5 9        agent  [1]      wrong, 0 comes after 9: the end

Task: {"turns": 64, "digits": 3, "choices": 10, "least_turns": 0}: turns at most, digits that each turn shows,
legal actions. The agent answers the digit that comes after the last one; the others are there for length
alone. Digits are drawn from the seed. With least_turns above 0 so are the turns, from that many to `turns`.

Reward: right answers over `turns`, so from 0 to 1. Metrics: win (1 if every answer was right), right (the
answers that were). An agent that answers rightly with probability p plays about 1 / (1 - p) turns: nothing
else about the task changes while contexts become longer by two orders of magnitude.

`relay/penalised` takes from the reward for each turn past `free_turns` (16) the `penalty` (0.05): an agent
that has learned enough ends an episode early, by a wrong answer, rather than pay more than it earns.

Legal actions, for a warm-up by random play: the right digit and `choices` - 1 others. They are not part of
what the agent reads; with few of them a warm-up teaches more than the form.

`relay/recite` asks for many digits at once: {"digits": 4, "answer": 32, "choices": 2}. Its one turn shows
`digits` digits, and the agent counts on from the last one for `answer` digits: a short context to read and a
long answer to write, where `relay/digits` with many digits and one turn is the reverse. Reward and metric
`right`: the part of the digits that is right in its place. An answer that ends early, or that a limit of
tokens ends before its bracket, counts as far as it goes.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

from earl.env.adapters.settings import Number, Setting, Whole, checked
from earl.env.base import Environment, Observation, StepResult

_ANSWER = re.compile(r"\[([0-9])\]")
_TASK: dict[str, Setting] = {
    "turns": Whole(64, 1, 100_000),
    "digits": Whole(3, 1, 1_000),
    "choices": Whole(10, 1, 10),
    "least_turns": Whole(0, 0, 100_000),
}
_RECITE: dict[str, Setting] = {
    "digits": Whole(4, 1, 1_000),
    "answer": Whole(32, 1, 10_000),
    "choices": Whole(2, 1, 10),
}
_PENALTY: dict[str, Setting] = {"free_turns": Whole(16, 0, 100_000), "penalty": Number(0.05, 0.0, 1.0)}


class Relay(Environment):
    """Digits in, the next digit out, until the first mistake."""

    name = "relay/digits"
    description = "Answer the digit that comes after the last one shown, in brackets; 0 comes after 9."
    reward_range = (0.0, 1.0)
    blocking = False

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """ValueError for a bad task."""
        return self._begun(seed, checked(task, _TASK))

    def _begun(self, seed: int, settings: dict[str, Any]) -> Observation:
        self._turns, self._digits = settings["turns"], settings["digits"]
        self._choices = settings["choices"]
        self._draw = random.Random(f"relay/{seed}")
        if least := settings["least_turns"]:
            if least > self._turns:
                raise ValueError(f"least_turns is {least}, more than turns, which are {self._turns}")
            self._turns = self._draw.randint(least, self._turns)
        self._right = 0
        return self._shown()

    def step(self, action: str) -> StepResult:
        """The answer is the last digit in brackets; none is a wrong one."""
        answers = _ANSWER.findall(action)
        right = bool(answers) and int(answers[-1]) == self._answer
        self._right += right
        reward = right / self._turns
        if right and self._right < self._turns:
            return StepResult(self._shown(), reward)
        metrics = {"win": float(right), "right": float(self._right)}
        return StepResult(Observation("."), reward, done=True, metrics=metrics)

    def _shown(self) -> Observation:
        digits = [self._draw.randrange(10) for _ in range(self._digits)]
        self._answer = (digits[-1] + 1) % 10
        others = [digit for digit in range(10) if digit != self._answer]
        choices = sorted([self._answer, *self._draw.sample(others, self._choices - 1)])
        return Observation(" ".join(map(str, digits)), [f"[{digit}]" for digit in choices])


class PenalisedRelay(Relay):
    """The relay with a price on length, as it is put on long answers where contexts have a limit."""

    name = "relay/penalised"
    description = f"{Relay.description} Turns past the free ones cost reward."
    # Whatever the penalty: as many turns as there may be.
    reward_range = (-100_000.0, 1.0)

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """ValueError for a bad task."""
        settings = checked(task, _TASK | _PENALTY)
        self._free, self._penalty = settings["free_turns"], settings["penalty"]
        return self._begun(seed, settings)

    def step(self, action: str) -> StepResult:
        """Like the relay's, less the penalty."""
        turn = self._right + 1
        result = super().step(action)
        return replace(result, reward=result.reward - self._penalty) if turn > self._free else result


class Recite(Environment):
    """A digit in, the digits that come after it out, in one answer."""

    name = "relay/recite"
    description = "Answer with the digits that come after the last one shown, in brackets; 0 comes after 9."
    reward_range = (0.0, 1.0)
    blocking = False

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """ValueError for a bad task."""
        settings = checked(task, _RECITE)
        draw = random.Random(f"recite/{seed}")
        shown = [draw.randrange(10) for _ in range(settings["digits"])]
        self._answer = [(shown[-1] + place) % 10 for place in range(1, settings["answer"] + 1)]
        others = [[draw.randrange(10) for _ in self._answer] for _ in range(settings["choices"] - 1)]
        choices = sorted(f"[{' '.join(map(str, digits))}]" for digits in (self._answer, *others))
        return Observation(" ".join(map(str, shown)), choices)

    def step(self, action: str) -> StepResult:
        """The answer is what follows the last opening bracket."""
        digits = [int(word) for word in re.findall("[0-9]", action.rpartition("[")[2].partition("]")[0])]
        right = sum(map(int.__eq__, digits, self._answer)) / len(self._answer)
        metrics = {"win": float(right == 1), "right": right}
        return StepResult(Observation("."), right, done=True, metrics=metrics)


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module."""
    return [Relay, PenalisedRelay, Recite]
