"""The task of `earl bench e2e`: sort numbers. Standard library alone: EARL's environment and TRL's reward
function, which live in different environments, both import it.

    question(7)   -> "sort 31 4 88 4 = "        answer  -> "4 4 31 88"

One question is one seed; a seed is used once, in training or in evaluation. Lengths vary as
those of language models' answers do, by about their own mean: most questions are short, few are long.
"""

from __future__ import annotations

import random

SHORTEST, LONGEST, LARGEST = 2, 32, 19
# Numbers beyond the shortest are distributed exponentially with this mean, at most LONGEST.
MEAN_MORE = 6.0
# Words of the word-level tokenizer, beside its special tokens.
WORDS = ["sort", "=", *(str(number) for number in range(LARGEST + 1))]
# Longest prompt (<bos> sort ... =) and longest answer (... <eos>), in tokens of that tokenizer.
PROMPT_TOKENS = LONGEST + 3
ANSWER_TOKENS = LONGEST + 2
# Seeds of evaluation; training draws below.
EVALUATION_SEED = 1 << 40


def numbers(seed: int) -> list[int]:
    """The numbers of a question, as many as the seed says."""
    draw = random.Random(seed)
    count = min(LONGEST, SHORTEST + int(draw.expovariate(1 / MEAN_MORE)))
    return [draw.randint(0, LARGEST) for _ in range(count)]


def question(seed: int) -> str:
    return f"sort {' '.join(map(str, numbers(seed)))} ="


def score(seed: int, answer: str) -> float:
    """1 for the numbers in order; else half the fraction of places that are right, 0 for another count."""
    right = [str(number) for number in sorted(numbers(seed))]
    given = answer.split()
    if given == right:
        return 1.0
    if len(given) != len(right):
        return 0.0
    return 0.5 * sum(map(str.__eq__, given, right)) / len(right)
