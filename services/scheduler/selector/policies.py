"""Policies by the names that commands and configuration have for them. Pure."""

from __future__ import annotations

from collections.abc import Callable

from earl.errors import ConfigError
from earl.parallelism import Parallelism
from services.scheduler.selector import baselines
from services.scheduler.selector.baselines import (
    DriftPolicy,
    GreedyPolicy,
    PaperPolicy,
    SafeStaticPolicy,
    StaticPolicy,
)
from services.scheduler.selector.decision import Outlook, SelectorPolicy
from services.scheduler.selector.earl_policy import EarlPolicy

# By name, given a table and the cost of a switch.
_POLICIES: dict[str, Callable[[Outlook, float], SelectorPolicy]] = {
    EarlPolicy.name: EarlPolicy,
    baselines.PAPER: lambda table, cost_s: PaperPolicy(table),
    baselines.DRIFT30: lambda table, cost_s: DriftPolicy(table),
    baselines.PAPER + baselines.GUARDED: lambda table, cost_s: PaperPolicy(table, guarded=True),
    baselines.DRIFT30 + baselines.GUARDED: lambda table, cost_s: DriftPolicy(table, guarded=True),
    baselines.GREEDY: lambda table, cost_s: GreedyPolicy(table),
    baselines.SAFE_STATIC: lambda table, cost_s: SafeStaticPolicy(table),
}
NAMES = (*_POLICIES, "static:tp=N")


def policy_of(name: str, table: Outlook, switch_cost_s: float) -> SelectorPolicy:
    """A new policy. Raises ConfigError or IllegalParallelism for a name that is none."""
    if name in _POLICIES:
        return _POLICIES[name](table, switch_cost_s)
    kind, _, degrees = name.partition(":")
    if kind == "static" and degrees:
        return StaticPolicy(table, Parallelism.parse(degrees))
    raise ConfigError(f"there is no policy {name!r}", f"it is one of {', '.join(NAMES)}")
