"""Plays everything that one adapter serves, prints what happened: python -m tests.support.sweep NAME."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import sys
import time
from typing import Any

from earl.env.base import Environment, StepResult
from earl.env.codec import answer
from tests.support.episodes import MALFORMED, at_random, played, total

MODULES = (
    "gymnasium",
    "open_spiel",
    "open_spiel_games",
    "pettingzoo",
    "reasoning_gym",
    "skyrl_gym",
    "textarena",
)
# Short episodes: enough to meet opponents, chance and most endings.
TASKS: dict[str, dict[str, Any]] = {
    "gymnasium": {"max_steps": 60},
    "open_spiel_games": {"max_turns": 60},
    "textarena": {"legal_actions": True, "max_turns": 8},
}
SEEDS = (1, 2)
# Where a reset takes seconds, a few texts will do.
MEANINGLESS = {
    "open_spiel_games": MALFORMED[::4],
    "reasoning_gym": MALFORMED[::6],
    "textarena": MALFORMED[::3],
}
MAX_RESULT_BYTES = 64 << 10


def swept(
    cls: type[Environment], task: dict[str, Any], says: str, texts: tuple[str, ...] = MALFORMED
) -> dict[str, Any]:
    """Plays two episodes, each twice, with texts that mean nothing too. fault: the first that is wrong."""
    digest = hashlib.sha256()
    try:
        for seed in SEEDS:
            choose = (lambda observation: says) if says else None
            _, outcomes = played(cls, seed, task, choose or at_random(seed))
            if outcomes != played(cls, seed, task, choose or at_random(seed))[1]:
                return {"fault": f"seed {seed} led to two different episodes"}
            if cls.reward_range is not None:
                low, high = cls.reward_range
                if not low - 1e-9 <= total(outcomes) <= high + 1e-9:
                    return {"fault": f"return {total(outcomes)} of seed {seed} is not within {low}, {high}"}
            for place, outcome in enumerate(outcomes):
                size = answer(1, place, outcome).ByteSize()
                if size > MAX_RESULT_BYTES:
                    return {"fault": f"result {place} of seed {seed} has {size} bytes"}
            digest.update(repr(outcomes).encode())
        for text in texts:
            _meaningless(cls, task, text)
    except Exception as error:  # noqa: BLE001 - the table of faults is what this is for
        return {"fault": f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"}
    return {"fault": "", "digest": digest.hexdigest()}


def started(cls: type[Environment]) -> dict[str, Any]:
    """Returns what a game starts with of which another variant was played."""
    environment: Any = cls()
    try:
        return {"fault": "", "digest": environment.reset(SEEDS[0], {}).text}
    except Exception as error:  # noqa: BLE001
        return {"fault": f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"}
    finally:
        environment.close()


def _games(name: str) -> dict[str, str]:
    """Environment → the game that it is a variant of, where a package has many of one."""
    if name != "textarena":
        return {}
    from earl.env.adapters.textarena_moves import ids

    return {f"textarena/{id}": game for id, game in ids().items()}


def _meaningless(cls: type[Environment], task: dict[str, Any], text: str) -> None:
    environment: Any = cls()
    try:
        environment.reset(SEEDS[0], {key: value for key, value in task.items() if key != "legal_actions"})
        for place in range(1, 4):
            result: StepResult = environment.step(text)
            answer(1, place, result)
            if result.done or result.truncated:
                return
    except Exception as error:
        raise RuntimeError(f"action {text[:40]!r} raised {type(error).__name__}: {error}") from error
    finally:
        environment.close()


def main(name: str) -> None:
    logging.disable()
    module = importlib.import_module(f"earl.env.adapters.{name}")
    says = {"reasoning_gym": "<answer>7</answer>", "skyrl_gym": "#### 7"}.get(name, "")
    task, texts = TASKS.get(name, {}), MEANINGLESS.get(name, MALFORMED)
    games = _games(name)
    results, met = {}, set()
    for cls in module.environments():
        began = time.monotonic()
        game = games.get(cls.name, cls.name)
        results[cls.name] = started(cls) if game in met else swept(cls, task, says, texts)
        met.add(game)
        spent_s = time.monotonic() - began
        if spent_s > 5 or results[cls.name]["fault"]:
            print(f"{cls.name}: {spent_s:.1f} s {results[cls.name]['fault']}", file=sys.stderr, flush=True)
    # Packages print too, and do not end their lines.
    print(f"\n{json.dumps(results)}")


if __name__ == "__main__":
    main(sys.argv[1])
