"""The files of a new project, by path: string.Template texts with $project, $package and $title.

The game is small on purpose: a digit to guess, and after each guess where it can still be, which a policy of
0.4 M parameters learns from nothing within minutes.
"""

from __future__ import annotations

_ENVIRONMENT = '''"""$title: find a digit in three tries; each answer says where it can still be."""

from __future__ import annotations

import random
from typing import Any

from earl.env import Environment, Observation, StepResult

DIGITS, TRIES = 7, 3
LEGAL = [f"[{digit}]" for digit in range(DIGITS)]


class $title(Environment):
    """An action is [d]. One object plays one episode; all chance comes from the seed."""

    name = "$package/guess"
    description = "Find a digit from 0 to 6 in three tries: an action is [d]."
    reward_range = (-1.0, 1.0)
    blocking = False  # a step takes microseconds; without this line it gets a thread

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        self.secret = random.Random(seed).randrange(DIGITS)
        self.low, self.high, self.left = 0, DIGITS - 1, TRIES
        return self._seen()

    def step(self, action: str) -> StepResult:
        self.left -= 1
        if action not in LEGAL:  # whatever a model writes has an answer; nothing is raised
            return self._end("illegal", -1.0)
        guess = int(action[1])
        if guess == self.secret:
            return self._end("right", 1.0)
        if not self.left:
            return self._end("over", 0.0)
        if guess < self.secret:
            self.low = max(self.low, guess + 1)
        else:
            self.high = min(self.high, guess - 1)
        return StepResult(self._seen())

    def _seen(self) -> Observation:
        return Observation(f"{self.low} to {self.high}", LEGAL)

    def _end(self, word: str, reward: float) -> StepResult:
        """The last result: its reward is the episode's, its metrics are what evaluations show."""
        metrics = {"win": float(reward > 0), "illegal": float(reward < 0)}
        return StepResult(word, reward, done=True, metrics=metrics)
'''

_TESTS = '''"""The rules of the game, and its report card."""

import json
import random
import subprocess
import sys
from pathlib import Path

from $package import $title

ROOT = Path(__file__).resolve().parent.parent


def test_halving_finds_the_digit():
    game = $title()
    seen = game.reset(7, {})
    assert seen.text == "0 to 6"
    while True:
        low, high = map(int, seen.text.split(" to "))
        middle = (low + high) // 2
        result = game.step(f"[{middle}]")
        if result.done:
            break
        seen = result.observation
    assert (result.reward, middle) == (1.0, random.Random(7).randrange(7))


def test_an_episode_is_bounded_and_any_text_has_an_answer():
    game = $title()
    game.reset(7, {})
    wrong = "[0]" if game.secret else "[1]"
    assert [game.step(wrong).done for _ in range(3)] == [False, False, True]
    game.reset(7, {})
    result = game.step("perhaps 3")
    assert result.done and result.metrics == {"win": 0.0, "illegal": 1.0}


def test_the_report_card():
    """What `earl env test` says; fewer episodes than it plays by itself."""
    command = [sys.executable, "-m", "earl.cli.main", "env", "test", "$package:$title", "--json"]
    command += ["--script", "episodes.jsonl", "--episodes", "200"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["passed"]
'''

_RUN = """# $title, learned from nothing: `earl train run.toml`, from this directory.
name = "$project"
seed = 0

[model.scratch]                 # a Llama of 0.4 M parameters with random weights
hidden_size = 128
intermediate_size = 352
layers = 2
heads = 8
kv_heads = 8
max_positions = 64
rope_theta = 100.0
embedding_std = 0.2
# Every word that the game and the agent may say.
words = [
  "[", "]", ">", "to", "right", "over", "illegal",
  "0", "1", "2", "3", "4", "5", "6",
]

[model]
action_prefix = ">"             # "0 to 6 > [5] 0 to 4 > [2] …"
stop = ["]"]                    # an action is "[5]": generation ends with its bracket

[environment]
name = "$package/guess"
serve = "$package:$title"       # the run starts a host of its own; "" waits for `earl env serve`

[rollout]
max_sequences = 256
max_context_tokens = 40
max_new_tokens = 4

[warmup]                        # imitate random legal actions, so that they are legal at the start
batches = 6
batch_episodes = 1024
minibatches = 32
passes = 3
lr = 2e-3
lr_final_fraction = 0.1
lr_warmup_steps = 10

[trainer]
threads = 2
lr = 3e-4
lr_final_fraction = 0.1
lr_warmup_steps = 10
betas = [0.95, 0.98]
max_grad_norm = 0.1
minibatches = 2
passes = 2
entropy_coefficient = 0.05
entropy_final_fraction = 0.0
kl_limit = 0.05

[scheduler]
group_size = 16                 # episodes with one seed, compared with each other
batch_groups = 16
staleness = 1
steps = 100
max_turns = 3

[evaluation]
episodes = 256
"""

_README = """# $project

An environment for EARL: find a digit from 0 to 6 in three tries.

```
earl env play $package:$title                            # play it yourself
python -m pytest                                         # its rules, and its report card
earl env test $package:$title --script episodes.jsonl    # the report card at full length
earl train run.toml                                      # train on it, on this machine
```

The game is $package/__init__.py; episodes.jsonl holds episodes that must come out as they did
(`earl env play ... --record episodes.jsonl` adds one). To serve it to a run elsewhere:
`earl env serve $package:$title --gateway HOST:PORT --replicas 4`.
"""

_PYPROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$project"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["earl"]

[tool.setuptools]
packages = ["$package"]

[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
"""

# With seed 7 the digit is 2; a policy that halves what is left finds it, and one that says "five" does not.
_EPISODES = """{"seed": 7, "actions": ["[3]", "[1]", "[2]"], "return": 1.0}
{"seed": 7, "actions": ["five"], "return": -1.0}
"""

FILES = {
    "pyproject.toml": _PYPROJECT,
    "README.md": _README,
    "run.toml": _RUN,
    "episodes.jsonl": _EPISODES,
    "$package/__init__.py": _ENVIRONMENT,
    "tests/test_$package.py": _TESTS,
}
