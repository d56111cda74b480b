"""A number-guessing environment of your own, and a host that serves it.

    EARL_GATEWAY=127.0.0.1:7000 python examples/env_python/guess.py

In a run file, instead: [environment] name = "example/guess", serve = "guess:Guess" (with this folder
on PYTHONPATH). Needs only the base install.
"""

from __future__ import annotations

import os
import random

from earl.env import EnvHost, Environment, Observation, StepResult
from earl.rpc.main import announce, run

ROUNDS = 4


class Guess(Environment):
    """Find a digit within ROUNDS guesses; the answer says whether it is higher or lower."""

    name = "example/guess"
    description = "Guess the digit: an action is [d]."
    reward_range = (0.0, 1.0)
    blocking = False  # a step takes microseconds: no thread needed

    def reset(self, seed: int, task: dict) -> Observation:
        self.secret = random.Random(seed).randrange(10)
        self.left = ROUNDS
        return self._observe("guess")

    def step(self, action: str) -> StepResult:
        guess = action.strip(" []")
        self.left -= 1
        if guess == str(self.secret):
            return StepResult(self._observe("right"), 1.0, done=True, metrics={"win": 1.0})
        if not guess.isdecimal():
            return StepResult(self._observe("illegal"), done=True, metrics={"win": 0.0, "illegal": 1.0})
        hint = "higher" if int(guess) < self.secret else "lower"
        return StepResult(self._observe(hint), done=self.left == 0, metrics={"win": 0.0})

    def _observe(self, word: str) -> Observation:
        return Observation(f"{word} {self.left}", [f"[{digit}]" for digit in range(10)])


if __name__ == "__main__":
    gateway = os.environ["EARL_GATEWAY"]
    host = EnvHost(gateway, Guess, capacity=64, name="guess", token=os.environ.get("EARL_TOKEN", ""))
    run(lambda stop: host.run(stop, ready=lambda: announce("guess", gateway)))
