"""Environments of gymnasium (package gymnasium) in words.

"gymnasium/ID" for the ids in gymnasium_views.py; one of your own, whose package has registered it, is

    mine = environment("my_package:Mine-v0", illegal_reward=-1.0)

shown as its "ansi" rendering where it has one and as numbers where not, and served as "module:mine".

An action is "[name]", a name or number of a Discrete space, or the numbers of a Box, "[0.5]"; the last
brackets of a text count. Anything else, and a number outside the Box, ends the episode as illegal: with
the worst reward for every step that was left (illegal_reward for your own), so that it never pays.

Task: {"max_steps": gymnasium's own limit, at most MAX_STEPS, "rules": true} and what the environment's
view names, for example {"is_slippery": false, "map_size": 8}. Without rules the first observation shows
the start alone. After max_steps the episode is truncated. Random maps, and all else, come from the seed.
Metrics: win, illegal (each 0 or 1), steps.
"""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import gymnasium
import numpy
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from earl.env.adapters import move_text
from earl.env.adapters.gymnasium_views import MAX_STEPS, VIEWS, GymnasiumView
from earl.env.adapters.held_out import drawn
from earl.env.adapters.settings import ChoiceSetting, Setting, Whole, checked
from earl.env.adapters.variants import variant
from earl.env.base import Environment, Observation, StepResult

MAX_TEXT_CHARACTERS = 8_000
# An environment without a limit of its own gets this one.
_MAX_STEPS = 200
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.ASCII)


class GymnasiumEnvironment(Environment):
    """One environment of gymnasium; `id` and `view` are the class's."""

    id: ClassVar[str]
    view: ClassVar[GymnasiumView]

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """Starts an episode. Raises ValueError for a malformed task."""
        limit = self.view.max_steps or _registered_limit(self.id)
        standard: dict[str, Setting] = {
            "max_steps": Whole(limit, 1, MAX_STEPS),
            "rules": ChoiceSetting(True, False),
        }
        settings = checked(task, standard | dict(self.view.arguments))
        rules = self.view.rules if settings.pop("rules") else ""
        self._left: int = settings.pop("max_steps")
        self._steps, self._return = 0, 0.0
        given = {key: value for key, value in settings.items() if key in task}
        if size := given.pop("map_size", 0):
            if size < 2:
                raise ValueError(f"map_size {size!r} is less than 2")
            given["desc"] = drawn(seed, lambda number: generate_random_map(size, seed=number), str)
        self._environment = gymnasium.make(
            self.id,
            max_episode_steps=self._left,
            disable_env_checker=True,
            render_mode="ansi" if _renders_text(self.id) else None,
            **given,
        )
        self._actions = _actions(self._environment.action_space, self.view.moves, self.id)
        observation, _ = self._environment.reset(seed=seed)
        text = self._shown(observation)
        return Observation(f"{rules}\n\n{text}".strip(), self._actions.legal)

    def step(self, action: str) -> StepResult:
        """Takes one action."""
        taken = self._actions.parse(action)
        self._steps += 1
        if taken is None:
            reward = self.view.forfeit(self._left)
            return self._ended("That is not an action.", reward, won=False, illegal=True)
        observation, reward, terminated, truncated, _ = self._environment.step(taken)
        self._left -= 1
        self._return += float(reward)
        text = self._shown(observation)
        if terminated or truncated:
            won = self.view.won(self._return, bool(terminated), bool(truncated))
            return self._ended(text, float(reward), won=won, truncated=bool(truncated and not terminated))
        return StepResult(Observation(text, self._actions.legal), float(reward))

    def close(self) -> None:
        """Releases the environment."""
        if (environment := getattr(self, "_environment", None)) is not None:
            environment.close()

    def _shown(self, observation: Any) -> str:
        return move_text.shortened(
            self.view.show(self._environment.unwrapped, observation), MAX_TEXT_CHARACTERS
        )

    def _ended(
        self, text: str, reward: float, *, won: bool, illegal: bool = False, truncated: bool = False
    ) -> StepResult:
        metrics = {"win": float(won), "illegal": float(illegal), "steps": float(self._steps)}
        return StepResult(Observation(text), reward, done=not truncated, truncated=truncated, metrics=metrics)


class _Named:
    """Actions of a Discrete space: by name, or by number where they have no names."""

    def __init__(self, space: spaces.Discrete, names: tuple[str, ...]) -> None:
        self._start = int(space.start)
        names = names or tuple(str(self._start + place) for place in range(int(space.n)))
        self._places = move_text.moves_by_name(names)
        self.legal = [f"[{name}]" for name in names]

    def parse(self, action: str) -> int | None:
        place = move_text.chosen_move(action, self._places)
        return None if place is None else self._start + place


class _Numbers:
    """Actions of a Box, MultiDiscrete or MultiBinary space: all its numbers in order."""

    def __init__(self, space: Any) -> None:
        self._space = space
        self._count = math.prod(space.shape)
        self.legal: list[str] = []
        if isinstance(space, spaces.Box) and self._count == 1 and space.is_bounded():
            low, high = float(space.low.item()), float(space.high.item())
            self.legal = [f"[{low + (high - low) * part / 4:g}]" for part in range(5)]

    def parse(self, action: str) -> Any:
        parts = move_text.move(action).replace(",", " ").split()
        if len(parts) != self._count or not all(map(_NUMBER.fullmatch, parts)):
            return None
        values = [float(part) for part in parts]
        if not all(abs(value) < 1 << 31 for value in values):
            return None
        if self._space.dtype.kind in "iub" and any(value != int(value) for value in values):
            return None
        taken = numpy.array(values).astype(self._space.dtype).reshape(self._space.shape)
        return taken if self._space.contains(taken) else None


def _actions(space: Any, names: tuple[str, ...], id: str) -> _Named | _Numbers:
    if isinstance(space, spaces.Discrete):
        return _Named(space, names)
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        return _Numbers(space)
    raise ValueError(f"actions of {id} are a {type(space).__name__}, which has no text form here")


def _registered_limit(id: str) -> int:
    return min(gymnasium.spec(id).max_episode_steps or _MAX_STEPS, MAX_STEPS)


def _renders_text(id: str) -> bool:
    entry = gymnasium.spec(id).entry_point
    made = load_env_creator(entry) if isinstance(entry, str) else entry
    return "ansi" in getattr(made, "metadata", {}).get("render_modes", ())


def rendered_text(environment: Any, observation: Any) -> str:
    """Any environment as text: its "ansi" rendering, what is coloured there in brackets, or its numbers."""
    if environment.render_mode == "ansi":
        return _bracketed(str(environment.render()))
    return str(_plain(observation))


def _bracketed(text: str) -> str:
    """Terminal colours as brackets around what they mark."""
    parts: list[str] = []
    marked = False
    end = 0
    for code in _ANSI.finditer(text):
        parts.append(text[end : code.start()])
        end = code.end()
        opens = code[0] not in ("\x1b[0m", "\x1b[m")
        if opens != marked:
            parts.append("[" if opens else "]")
            marked = opens
    return "".join(parts) + text[end:]


def _plain(value: Any) -> Any:
    """Arrays and numpy's numbers as lists and numbers of Python, rounded."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def environment(
    id: str,
    *,
    name: str = "",
    rules: str = "",
    illegal_reward: float = 0.0,
    reward_range: tuple[float, float] | None = None,
) -> type[GymnasiumEnvironment]:
    """The environment of a gymnasium id, "ID" or "module:ID", as a class to serve.

    name: "gymnasium/ID" if empty. rules: what the agent reads first. illegal_reward: of a move that is
    none, which ends the episode. reward_range: bounds of an episode's return, if it has any.
    """
    known_view = VIEWS.get(id)
    view = known_view or GymnasiumView(
        rules=rules, show=rendered_text, worst=illegal_reward, total=True, rewards=reward_range
    )
    bare = id.rpartition(":")[2]
    description = view.rules.partition("\n")[0] or f"gymnasium's {id}."
    name = name or f"gymnasium/{bare}"
    return variant(GymnasiumEnvironment, name, description, reward_range=view.rewards, id=id, view=view)


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module."""
    return [environment(id) for id in VIEWS]
