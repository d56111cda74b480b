"""The tasks of `earl bench e2e`: sort numbers. Standard library alone: EARL's environment and TRL's reward
function, which live in different environments, both import it.

    TASKS["unequal"].question(7)   -> "sort 31 4 88 4 = "        answer  -> "4 4 31 88"

One question is one seed; a seed is used once, in training or in evaluation. There are two tasks:

    unequal   lengths vary as those of language models' answers do, by about their own mean: most questions
              are short, few are long
    equal     every question has the same count of numbers, and so has every answer that is right
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LARGEST = 19
# Words of the word-level tokenizer, beside its special tokens.
WORDS = ["sort", "=", *(str(number) for number in range(LARGEST + 1))]
# Seeds of evaluation; training draws below.
EVALUATION_SEED = 1 << 40


@dataclass(frozen=True, slots=True)
class SortTask:
    """Questions of one distribution of lengths.

    shortest, longest: numbers of a question. mean_more: numbers beyond the shortest are distributed
    exponentially with this mean, up to the longest. threshold: the mean training reward at which a side
    of the benchmark is done.
    """

    name: str
    shortest: int
    longest: int
    mean_more: float
    threshold: float

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the longest prompt (<bos> sort ... =) in the word-level tokenizer."""
        return self.longest + 3

    @property
    def answer_tokens(self) -> int:
        """The most tokens of an answer: those of the longest right one (... <eos>), and one more."""
        return self.longest + 2

    def numbers(self, seed: int) -> list[int]:
        """The numbers of a question, as many as the seed says."""
        draw = random.Random(seed)
        count = self.shortest
        if self.longest > self.shortest:
            count = min(self.longest, count + int(draw.expovariate(1 / self.mean_more)))
        return [draw.randint(0, LARGEST) for _ in range(count)]

    def question(self, seed: int) -> str:
        return f"sort {' '.join(map(str, self.numbers(seed)))} ="

    def score(self, seed: int, answer: str) -> float:
        """1 for the numbers in order; else half the fraction of right places, 0 for another count."""
        right = [str(number) for number in sorted(self.numbers(seed))]
        given = answer.split()
        if given == right:
            return 1.0
        if len(given) != len(right):
            return 0.0
        return 0.5 * sum(map(str.__eq__, given, right)) / len(right)


UNEQUAL = SortTask("unequal", shortest=2, longest=32, mean_more=6.0, threshold=0.55)
# As long as the mean of the other one.
EQUAL = SortTask("equal", shortest=8, longest=8, mean_more=0.0, threshold=0.55)
TASKS = {task.name: task for task in (UNEQUAL, EQUAL)}
