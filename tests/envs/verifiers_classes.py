"""Environments of verifiers, for a host that a test starts in verifiers' own environment."""

from typing import ClassVar

from earl.env.adapters.verifiers import Verifiers


class Reverse(Verifiers):
    """One turn."""

    name = "verifiers/reverse"
    taskset = "side-reverse"


class Count(Verifiers):
    """A user of verifiers' speaks after every reply."""

    name = "verifiers/count"
    taskset = "side-count"
    max_tasks = 50


class Short(Count):
    """A limit of verifiers' own."""

    name = "verifiers/short"
    config: ClassVar = {"agent": {"max_turns": 2}}


class Facts(Verifiers):
    """Tools of verifiers."""

    name = "verifiers/facts"
    taskset = "side-facts"


class Pair(Verifiers):
    """Two agents."""

    name = "verifiers/pair"
    taskset = "side-pair"


class Missing(Verifiers):
    """A taskset that is not installed."""

    name = "verifiers/missing"
    taskset = "side-missing"


ALL = [Reverse, Count, Short, Facts, Pair, Missing]
