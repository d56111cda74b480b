"""The environment of the benchmark: it costs nothing, so that what is measured is the way to it.

A step's observation names the host that gave it; a reset's does not, so that any host shows the same.
EARL_BENCH_HOST: that name. EARL_BENCH_FAILS: set, and every step raises. EARL_BENCH_ENVIRONMENTS: how many
environments the host serves, which differ in their names alone.
"""

from __future__ import annotations

import os
from typing import Any

from earl.env import Environment, StepResult

NAME = "bench/echo"
SERVE = "benchmarks.gateway.environment:environments"
HOST_CHARACTERS = 16


def names(count: int) -> list[str]:
    """The names of so many environments."""
    return [NAME, *(f"{NAME}-{number}" for number in range(1, count))]


class Echo(Environment):
    """task: bytes, of an observation; steps, of an episode."""

    name = NAME
    blocking = False
    host = os.environ.get("EARL_BENCH_HOST", "").ljust(HOST_CHARACTERS)
    fails = bool(os.environ.get("EARL_BENCH_FAILS"))

    def reset(self, seed: int, task: dict[str, Any]) -> str:
        self.left = int(task["steps"])
        self.text = "x" * (int(task["bytes"]) - HOST_CHARACTERS)
        return "." * HOST_CHARACTERS + self.text

    def step(self, action: str) -> StepResult:
        if self.fails:
            raise RuntimeError("this host fails every step")
        self.left -= 1
        return StepResult(self.host + self.text, reward=0.0, done=self.left == 0)


def environments() -> dict[str, type[Environment]]:
    """The environments that a host serves, by name."""
    return dict.fromkeys(names(int(os.environ.get("EARL_BENCH_ENVIRONMENTS", "1"))), Echo)
