"""Recovery of an aircraft in pitch, described in numbers: to level flight, fast, by the stick alone.

Every turn the agent reads altitude, speed, flight path and the load factor it feels, and answers with the
stick, from -1 (push) to 1 (pull), which is held for `hold_s`. It starts in a dive or a climb that the
seed chooses, always one that can be recovered from. pitch_model.py says what flies: a stand-in.

    user    Recover to level flight… time 0.0 s, altitude 1493 m, speed 171 m/s, path -42.5 deg, …
    agent   0.7
    user    time 0.5 s, altitude 1436 m, speed 173 m/s, path -41.3 deg, path rate 5.9 deg/s, pilot 4.5 g

The episode ends when the aircraft is level (within 3 degrees, changing less than 2 degrees a second, at
the end of a turn), on the ground, after `max_s`, or with an answer that is not such a number.

Reward, at the end: 0 unless it became level; then 0.5 and up to 0.5 more for time (the time of
`near_optimal` over its own, at most 1), of both half if the pilot's load factor ever left its limits.
Metrics: recovered, ground, over_g, malformed, win (recovered within the limits), each 0 or 1; seconds;
most_g and least_g at the pilot's station.

Task: {"hold_s": 0.5, "max_s": 20, "least_g": -1, "most_g": 7, "instruction": "…"}.
"""

from __future__ import annotations

import math
import random
import re
from typing import Any

from earl.env.adapters.held_out import drawn
from earl.env.adapters.pitch_model import (
    GRAVITY,
    STEP_S,
    Aircraft,
    Moment,
    PitchState,
    hold_stick,
    moment,
    near_optimal,
)
from earl.env.adapters.settings import Number, Text, checked
from earl.env.base import Environment, Observation, StepResult

STICKS = ("-1", "-0.5", "-0.25", "0", "0.25", "0.5", "0.75", "1")
INSTRUCTION = (
    "Recover to level flight, fast, without striking the ground. "
    "Answer with the stick: a number from -1 (push) to 1 (pull)."
)
_STICK = re.compile(r"\s*(?:stick\s+)?([+-]?[01](?:\.[0-9]{1,3})?)\s*", re.ASCII)
_TASK = {
    "hold_s": Number(0.5, 0.1, 2.0),
    "max_s": Number(20.0, 1.0, 60.0),
    "least_g": Number(-1.0, -3.0, 0.5),
    "most_g": Number(7.0, 3.0, 9.0),
    "instruction": Text(INSTRUCTION),
}


class PitchRecovery(Environment):
    """One recovery. aircraft, start, limits: for policies that see the model."""

    name = "flight/pitch_recovery"
    description = "Bring an aircraft from a dive or climb to level flight; actions are the stick, -1 to 1."
    reward_range = (0.0, 1.0)
    aircraft = Aircraft()

    def reset(self, seed: int, task: dict[str, Any]) -> Observation:
        """ValueError for a bad task."""
        settings = checked(task, _TASK)
        self.hold_s = max(round(settings["hold_s"] / STEP_S), 1) * STEP_S
        self.limits = (settings["least_g"], settings["most_g"])
        self._max_s = settings["max_s"]
        self.start = drawn(seed, lambda number: _start(number, self.limits[1]), str)
        self.now = moment(self.aircraft, self.start, 0.0)
        self._most = self._least = self.now.pilot
        return self._observation(f"{settings['instruction']} ".lstrip())

    def step(self, action: str) -> StepResult:
        """Hold the stick for a turn."""
        stick = parsed(action)
        if stick is None:
            return self._ended("not a number from -1 to 1", malformed=1.0)
        for felt in hold_stick(self.aircraft, self.now.state, stick, self.hold_s):
            self.now = felt
            self._most, self._least = max(self._most, felt.pilot), min(self._least, felt.pilot)
        if self.now.struck:
            return self._ended("struck the ground", ground=1.0)
        if not self.now.level:
            if self.now.state.seconds + STEP_S / 2 < self._max_s:
                return StepResult(self._observation())
            return self._ended("out of time")
        return self._recovered()

    def _recovered(self) -> StepResult:
        within = self.limits[0] <= self._least and self._most <= self.limits[1]
        best = recovery_s(self.aircraft, self.start, self.hold_s, self.limits, self._max_s)
        reward = 0.5 + 0.5 * min(best / self.now.state.seconds, 1.0)
        outcome = "level" if within else "level, but outside the limits"
        return self._ended(outcome, reward * (1.0 if within else 0.5), recovered=1.0, win=float(within))

    def _ended(self, outcome: str, reward: float = 0.0, **ended: float) -> StepResult:
        within = self.limits[0] <= self._least and self._most <= self.limits[1]
        metrics = dict.fromkeys(("win", "recovered", "ground", "malformed"), 0.0) | ended
        metrics |= {
            "over_g": float(not within),
            "seconds": round(self.now.state.seconds, 3),
            "most_g": self._most,
            "least_g": self._least,
        }
        observation = self._observation(f"{outcome}: ")
        return StepResult(Observation(observation.text), reward, done=True, metrics=metrics)

    def _observation(self, before: str = "") -> Observation:
        return Observation(before + described(self.now, self.limits), STICKS)


def described(now: Moment, limits: tuple[float, float]) -> str:
    """The observation as the agent reads it: rounded numbers with units."""
    state = now.state
    least, most = limits
    return (
        f"time {state.seconds:.1f} s, altitude {max(state.altitude, 0):.0f} m, speed {state.speed:.0f} m/s, "
        f"path {_signed(state.path)} deg, path rate {_signed(now.path_rate)} deg/s, "
        f"pilot {now.pilot:.1f} g of {least:g} to {most:g}"
    )


def _signed(angle: float) -> str:
    return f"{math.degrees(angle):.1f}".replace("-0.0", "0.0")


def parsed(action: str) -> float | None:
    """The stick that an action names; None unless it is one number from -1 to 1, "stick" before it or not."""
    match = _STICK.fullmatch(action[:64]) if len(action) <= 64 else None
    stick = float(match[1]) if match else math.inf
    return stick if abs(stick) <= 1 else None


def recovery_s(
    aircraft: Aircraft, start: PitchState, hold_s: float, limits: tuple[float, float], max_s: float
) -> float:
    """Returns how long `near_optimal` takes from `start`, whatever is below; at most max_s."""
    state = start
    while state.seconds < max_s:
        stick = near_optimal(aircraft, state, hold_s, limits)
        for felt in hold_stick(aircraft, state, stick, hold_s):
            state = felt.state
        if felt.level:
            break
    return state.seconds


def _start(number: int, most_g: float) -> PitchState:
    """A dive of 15 to 75 degrees, or one time in four a climb of 15 to 50, not yet level.

    Height: what a pull at 60 % of the limit needs, from the constant-speed arc
    dh = V^2 / g ln((n - cos y) / (n - 1)), and the second before it builds up; 50 to 800 m more.
    """
    rng = random.Random(number)
    speed = rng.uniform(140.0, 220.0)
    spare = rng.uniform(50.0, 800.0)
    if rng.random() < 0.25:
        return PitchState(
            round(1_000.0 + spare, 1), round(speed, 1), math.radians(round(rng.uniform(15.0, 50.0), 1))
        )
    path = math.radians(-round(rng.uniform(15.0, 75.0), 1))
    load = max(0.6 * most_g, 1.5)
    faster = speed * 1.2
    arc = faster**2 / GRAVITY * math.log((load - math.cos(path)) / (load - 1.0))
    return PitchState(round(arc + faster * math.sin(-path) + spare, 1), round(speed, 1), path)


def environments() -> list[type[Environment]]:
    """Lists the environments that a host serves from this module."""
    return [PitchRecovery]
